"""Launches that start before the one before has ended: where that is offered, what kernels do first, and values."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sgraph_samples as samples
import torch
from compiled_code import VERSIONS, CodeOf
from finalist import open_to
from interpreting import InterpreterPool, InterpretJob
from test_streams import branches, config, two_splits

from prism.backends.loading import load_module
from prism.backends.triton.emit import emit_module
from prism.cost.device import device
from prism.cost.model import Model
from prism.errors import BackendError
from prism.instantiate.options import Offered, variants
from prism.instantiate.space import Space
from prism.sgraph.folding import folds
from prism.sgraph.nodes import SGraph

TOUCHES = re.compile(r"\b(ld\.global|st\.global|atom|red|cp\.async|cp\.reduce|griddepcontrol)\S*")


def written(g: SGraph, folder: Path) -> Path:
    path = folder / f"{g.name}.py"
    path.write_text(emit_module(g, formula="f", configs={}).text)
    return path


def test_it_is_offered_to_kernels_after_kernels_from_hopper_on() -> None:
    g = branches(64, 64, 64)
    first, second, third, last = (x.name for x in g.launches)
    space, model = Space(g, device("sm_90"), {}), Model(g, device("sm_90"), {})
    assert open_to(space, "dependent") == (second, third, last)
    assert open_to(Space(g, device("sm_80"), {}), "dependent") == ()
    plain = next(c for c in space.best(model, 8) if not c.options)
    made = variants(space.options, Offered.TIMING, plain, model)
    assert plain.having(dependent=[second, third, last]) in made
    assert all(space.feasible(c) for c in made)
    assert not space.feasible(plain.having(dependent=[first]))
    assert not space.feasible(plain.having(dependent=[second], streams={third: 1}))
    # What a library launches may not have waited.
    assert not space.feasible(plain.having(dependent=[third], library=[second]))
    assert all(not space.feasible(c.having(library=[second])) for c in made)
    with pytest.raises(BackendError, match="cannot start before the one before"):
        emit_module(g, formula="f", configs={"sm_90": [plain.having(dependent=[first])]})
    assert "gdc" not in emit_module(g, formula="f", configs={"sm_90": [plain]}).text
    assert "gdc" not in emit_module(samples.matmul().sgraph, formula="f", configs={}).text


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("graph", [branches, two_splits])
def test_kernels_wait_before_they_touch_memory(graph: Callable[[], SGraph], version: str, code_of: CodeOf) -> None:
    g = graph()
    names = [x.name for x in g.launches]
    seconds = set(folds(g))
    chosen = [n for n in names[1:] if n not in seconds]
    found = code_of(g, config(g).having(dependent=chosen, folded=seconds), version=version)
    assert [code.kernel for code in found] == [n for n in names if n not in seconds]
    for code in found:
        touched = [m.group(0) for m in TOUCHES.finditer(code.ptx)]
        assert touched[:2] == ["griddepcontrol.wait;", "griddepcontrol.launch_dependents;"], code.kernel
        assert len(touched) > 2
        assert code.early == (code.kernel in chosen)


def test_values_and_calls_without_a_device_are_as_before(interpreter: InterpreterPool, tmp_path: Path) -> None:
    g = two_splits()
    seconds = set(folds(g))
    chosen = [x.name for x in g.launches[1:] if x.name not in seconds]
    path = written(g, tmp_path)
    random = np.random.default_rng(0)
    inputs = tuple(random.standard_normal([int(e) for e in t.shape]).astype("float32") for t in g.inputs)
    plain = config(g).having(folded=seconds)
    jobs = [
        InterpretJob(path, g.name, inputs, ("float32",) * len(inputs), c)
        for c in (plain, plain.having(dependent=chosen))
    ]
    without, with_it = interpreter.run_many(jobs)
    assert not without.error
    assert not with_it.error
    by_name = {t.name: a.astype(float) for t, a in zip(g.inputs, inputs, strict=True)}
    want = by_name["x"] @ by_name["w"] + by_name["x2"] @ by_name["w2"]
    np.testing.assert_allclose(with_it.outputs[0], want, rtol=2e-5, atol=1e-4)
    # On other streams it counts for nothing.
    meta = [torch.empty([int(e) for e in t.shape], device="meta") for t in (*g.inputs, *g.outputs)]
    launches = load_module(path, apart=True).launches
    both = plain.having(dependent=chosen, streams={chosen[0]: 1})
    assert not any("launch_pdl" in m for _, _, _, m in launches(*meta, config=both.encode()))
    early = [k.__name__ for k, _, _, m in launches(*meta, config=jobs[1].config.encode()) if "launch_pdl" in m]
    assert early == chosen
