"""Products by groups, each group with a factor of its own: groups are shared by programs, and one loop takes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from interpreting import InterpreterPool, InterpretJob

import prism
from prism.backends.triton.emit import emit_module
from prism.cost.device import device
from prism.instantiate.space import Space
from prism.sgraph import show, spec
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph, Split

M, N, GROUPS, LENGTH = 16, 512, 12, 256


def grouped(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x [m, g, k], w [n, g, k], scale [n, g]."""
    return torch.einsum("mgk,ngk,ng->mn", x, w, scale)


def split_by_groups() -> SGraph:
    given = [torch.empty(s, device="meta") for s in ((M, GROUPS, LENGTH), (N, GROUPS, LENGTH), (N, GROUPS))]
    program = prism.trace(grouped, given)
    with prism.search(program, target="sm_90") as running:
        for p in running:
            for kernel in p.sgraph.kernels:
                if any(isinstance(r, Split) and r.tile == 1 and a.extent == GROUPS for a, r in kernel.roles):
                    return p.sgraph
    raise AssertionError("no program takes some of the groups")


def test_groups_are_shared_by_programs(interpreter: InterpreterPool, tmp_path: Path) -> None:
    g = split_by_groups()
    spec.check(g)
    (kernel,) = (k for k in g.kernels if any(isinstance(r, Split) for _, r in k.roles))
    ((axis, role),) = ((a, r) for a, r in kernel.roles if isinstance(r, Split))
    assert axis.extent == GROUPS
    assert isinstance(role, Split)
    assert f"split {axis}({role.parts}, 1)" in show.text(g)
    assert [s for s in g.symbols if s == role.parts] == [role.parts]
    space = Space(g, device("sm_90"), {})
    launch = next(x.name for x in g.launches if kernel in x.kernels)
    (points,) = (p for x, p in zip(g.launches, space.launches, strict=True) if x.name == launch)
    # No more parts than groups.
    assert {*points.column(role.parts.name).tolist()} == {2, 4, 8}
    path = tmp_path / "grouped.py"
    source = emit_module(g, formula="", configs={})
    path.write_text(source.text)
    rng = np.random.default_rng(0)
    given = {t.name: rng.standard_normal(tuple(map(int, t.shape))).astype(np.float32) for t in g.inputs}
    # 12 groups for 8 programs: two each, and the last two have none.
    symbols = {s.name: 64 for s in g.symbols} | {role.parts.name: 8}
    names = [x.name for x in g.launches]
    config = Config(symbols, dict.fromkeys(names, 4), dict.fromkeys(names, 1))
    (y,) = interpreter.run(InterpretJob(path, source.entry, tuple(given.values()), ("float32",) * len(given), config))
    want = np.einsum("mgk,ngk,ng->mn", *(a.astype(np.float64) for a in given.values()))
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-3)
