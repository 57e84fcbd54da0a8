"""Persistent launches: which may be, that every tile is done, what compilers make of it, where they are offered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sgraph_samples as samples
import torch
from finalist import finalist, open_to
from interpreting import InterpreterPool, InterpretJob
from sgraph_samples import BF16, F32, Sample, sym
from short_calls import config_of
from test_measure import GPU, PROGRAM
from test_ranges import CAUSAL, narrowed, resized
from test_rematch import Clock, candidate, result, trial

from prism.api.finalists import challengers, emitted
from prism.backends.loading import load_module
from prism.backends.protocol import arguments
from prism.backends.triton.emit import emit_module
from prism.bench.prepare import TARGETS, entry, module_facts
from prism.cost.device import device
from prism.cost.model import Model
from prism.cost.persistent import flattenable, persistable
from prism.errors import BackendError
from prism.instantiate.confirm import challenged
from prism.instantiate.measure import Bench, Measuring
from prism.instantiate.options import Offered, options_of, variants
from prism.instantiate.space import Space
from prism.instantiate.study import Best, Candidate, Failure, Outcome
from prism.platforms.gpu import AbsentGpu, PresentGpu
from prism.process.worker import Pool
from prism.program.extents import evaluate
from prism.sgraph.config import Config, Resources
from prism.sgraph.launches import fuse
from prism.sgraph.nodes import SGraph, Store

H200 = device("sm_90")


def config(g: SGraph, symbols: Mapping[str, int], blocks: int = 0) -> Config:
    names = [x.name for x in g.launches]
    looped = dict.fromkeys(persistable(g), blocks) if blocks else {}
    return Config(dict(symbols), dict.fromkeys(names, 4), dict.fromkeys(names, 2)).having(persistent=looped)


# Which may be.


def test_products_in_loops_may_be_persistent_and_nothing_else() -> None:
    for sample in (samples.matmul(), samples.attention(), samples.rmsnorm_linear(), samples.gated_mlp()):
        assert persistable(sample.sgraph) == tuple(x.name for x in sample.sgraph.launches)
    for sample in (samples.layernorm(), samples.add_silu()):
        assert persistable(sample.sgraph) == ()
    # Both stages of what counts programs in by tiles, and a launch of several kernels.
    assert persistable(samples.split_k_matmul().sgraph) == ()
    own = samples.matmul().sgraph
    (k,) = own.kernels
    stored = k.body[-1]
    assert isinstance(stored, Store)
    other = replace(k, name="other_kernel", body=(*k.body[:-1], replace(stored, tensor="z")))
    both = replace(own, kernels=(k, other), outputs=(*own.outputs, replace(own.outputs[0], name="z")))
    assert persistable(both) == ("matmul_kernel", "other_kernel")
    assert persistable(fuse(both, ("matmul_kernel", "other_kernel"))) == ()


def test_one_loop_of_the_same_length_in_every_tile_may_be_one_with_the_loop_over_tiles() -> None:
    for sample in (samples.matmul(), samples.attention(), samples.rmsnorm_linear()):
        assert flattenable(sample.sgraph) == persistable(sample.sgraph) != ()
    causal = narrowed(resized(CAUSAL, 37, 37).sgraph())
    assert flattenable(causal) == ()
    assert persistable(causal) != ()
    # It has two loops, one after the other.
    assert flattenable(samples.gated_mlp().sgraph) == ()


# What is computed.


def cases() -> list[tuple[Sample, dict[str, int], dict[str, int]]]:
    """Samples with lengths and tiles at which all edges are ragged."""
    return [
        (samples.matmul(F32, m=37, k=40, n=27), {}, {"T_m": 8, "T_n": 8, "T_k": 16}),
        (samples.symbolic_matmul(F32), {"M": 19}, {"T_m": 4, "T_n": 8, "T_k": 32}),
        (samples.attention(F32, heads=3), {}, {"T_i": 8, "T_j": 16}),
        (samples.attention(F32, heads=2, seq=sym("seq")), {"seq": 37}, {"T_i": 16, "T_j": 16}),
    ]


def test_persistent_programs_do_every_tile_at_ragged_extents(interpreter: InterpreterPool, tmp_path: Path) -> None:
    jobs: list[InterpretJob] = []
    wanted: list[np.ndarray] = []
    for n, (sample, lengths, symbols) in enumerate(cases()):
        g = narrowed(sample.sgraph)
        source = emit_module(g, formula="f", configs={})
        path = tmp_path / f"case{n}.py"
        path.write_text(source.text)
        inputs = tuple(sample.inputs(lengths))
        module = load_module(path, apart=True)
        sizes = [[evaluate(e, lengths) for e in t.shape] for t in (*g.inputs, *g.outputs)]
        meta = [torch.empty(s, device="meta") for s in sizes]
        for blocks in (1, 3):
            chosen = config(g, symbols, blocks)
            ((_, grid, args, _),) = module.launches(*meta, config=chosen.encode())
            ((_, tiles, without, _),) = module.launches(*meta, config=config(g, symbols).encode())
            # Fewer programs than tiles: each does several, and some one more than others.
            assert grid == (min(tiles[0], 2 * blocks),)
            assert args[-1] == tiles[0]
            assert without[-1] is None
            if blocks == 3:
                chosen = chosen.having(flattened=flattenable(g))
            jobs.append(InterpretJob(path, source.entry, inputs, ("float32",) * len(inputs), chosen))
            wanted.append(sample.reference(*(np.asarray(a, float) for a in inputs))[0])
    for found, want in zip(interpreter.run_many(jobs), wanted, strict=True):
        assert not found.error
        np.testing.assert_allclose(found.outputs[0], want, rtol=2e-5, atol=3e-6 * np.abs(want).max())


def test_a_program_that_stops_after_its_first_tile_shows(interpreter: InterpreterPool, tmp_path: Path) -> None:
    sample, _, symbols = cases()[0]
    source = emit_module(sample.sgraph, formula="f", configs={})
    loop = "tl.range(tl.program_id(0), tile_count, tl.num_programs(0), flatten=FLATTENED):"
    assert loop in source.text
    path = tmp_path / "once.py"
    path.write_text(source.text.replace(loop, "range(tl.program_id(0), tl.num_programs(0)):"))
    inputs = tuple(sample.inputs({}))
    job = InterpretJob(path, source.entry, inputs, ("float32",) * 2, config(sample.sgraph, symbols, 1))
    (found,) = interpreter.run_many([job])
    (want,) = sample.reference(*(np.asarray(a, float) for a in inputs))
    assert found.error or not np.allclose(found.outputs[0], want, atol=1e-3)


# What compilers make of it.


@pytest.mark.parametrize(
    "targets",
    [("sm_90", "gfx942"), pytest.param(TARGETS, marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_it_compiles_everywhere_and_keeps_its_pipeline(targets: Sequence[str], compilers: Pool, tmp_path: Path) -> None:
    built = {
        "matmul": (samples.matmul(BF16, m=1000, k=1024, n=1024).sgraph, {"T_m": 64, "T_n": 64, "T_k": 64}),
        "attention": (narrowed(samples.attention(BF16, heads=8, seq=1000, d=64).sgraph), {"T_i": 64, "T_j": 64}),
    }
    requests = []
    for name, (g, symbols) in built.items():
        path = tmp_path / f"{name}.py"
        path.write_text(emit_module(g, formula="f", configs={}).text)
        given = [[list(a.shape), a.dtype] for a in arguments(g, {})]
        for target in targets if name == "matmul" else ("sm_90",):
            for blocks in (0, 2):
                chosen = config(g, symbols, blocks).encode()
                requests.append({"module": str(path), "target": target, "config": chosen, "arguments": given})
    found = []
    for reply in compilers.map(requests, 120):
        assert "error" not in reply.answer, reply
        found += reply.answer["resources"]
    for once, again in zip(found[::2], found[1::2], strict=True):
        assert once["kernel"] == again["kernel"]
        assert once["spills"] == again["spills"] == 0
        # As many stages of operands in shared memory.
        assert again["shared"] >= once["shared"] > 0


# Where it is offered.


def test_configurations_say_so_everywhere() -> None:
    g = samples.matmul().sgraph
    chosen = config(g, {"T_m": 16, "T_n": 8, "T_k": 32}, 3)
    assert config_of(chosen.flat()) == chosen
    assert "persistent.matmul_kernel=3" in chosen.key()
    assert "persistent" not in config(g, {}).encode()
    text = emit_module(g, formula="f", configs={"sm_90": [chosen]}).text
    assert module_facts(text)[0] == [chosen.encode()]
    wrong = chosen.having(persistent={"other_kernel": 2})
    with pytest.raises(BackendError, match="other_kernel cannot be persistent"):
        emit_module(g, formula="f", configs={"sm_90": [wrong]})
    for other in (samples.layernorm(), samples.split_k_matmul()):
        assert "_resident" not in emit_module(other.sgraph, formula="f", configs={}).text


def test_only_what_does_not_fit_at_once_is_offered_and_by_descriptors_what_does_not_bound_it_is_hidden() -> None:
    g = samples.matmul(BF16, m=4096, k=4096, n=4096).sgraph
    space, model = Space(g, H200, {}), Model(g, H200, {})
    large = Config({"T_m": 128, "T_n": 256, "T_k": 64}, {"matmul_kernel": 8}, {"matmul_kernel": 3})
    assert space.feasible(large)
    found, flat = variants(space.options, Offered.TIMING, large, model)
    programs, blocks = model.occupancy("matmul_kernel", large)
    assert blocks == 1
    assert programs == 32 * 16 > 132
    assert found.numbers("persistent") == {"matmul_kernel": blocks}
    assert space.feasible(found)
    assert not space.feasible(found.having(persistent={"x": 1}))
    assert found.launches("descriptors") == {"matmul_kernel"}
    assert model.seconds(found) < model.seconds(large) == model.seconds(found.having(descriptors=()))
    # One loop of two is for what is both, and has a loop of the same length in every tile.
    assert flat == found.having(flattened=["matmul_kernel"])
    assert space.feasible(flat)
    assert not space.feasible(flat.having(descriptors=()))
    assert not space.feasible(flat.having(persistent={}))
    assert model.seconds(flat) == model.seconds(found)
    # Programs that share a multiprocessor hide each other's loads as they are.
    medium = Config({"T_m": 128, "T_n": 128, "T_k": 64}, {"matmul_kernel": 8}, {"matmul_kernel": 3})
    shared = variants(space.options, Offered.TIMING, medium, model)[0]
    assert shared.numbers("persistent")["matmul_kernel"] > 1
    assert model.seconds(shared) > model.seconds(medium)
    # A library's call, and what runs at once.
    call = Config(large.symbols, {}, {}).having(library=["matmul_kernel"])
    assert variants(space.options, Offered.TIMING, call, model) == ()
    assert not space.feasible(replace(found, warps={}, stages={}).having(library=frozenset({"matmul_kernel"})))
    small = samples.matmul(BF16, m=512, k=4096, n=512).sgraph
    assert variants(options_of(small, H200, {}), Offered.TIMING, large, Model(small, H200, {})) == ()
    # The space has no more points for it.
    assert all(not c.numbers("persistent") for c in space.configs(50))
    assert open_to(Space(samples.split_k_matmul().sgraph, H200, {}), "persistent") == ()


def test_a_manifest_has_as_many_programs_as_the_compiler_leaves_room_for() -> None:
    f = finalist(samples.matmul(BF16, m=4096, k=4096, n=4096).sgraph, H200)
    config = next(c for c in f.candidate.points if not c.launches("library"))
    twin, _ = f.variants(Offered.TIMING, Best(0, config, f.model.seconds(config), ()))
    assert twin.having(persistent={}, descriptors=()) == config
    # A twin takes more registers: so many programs as are there at a time, with what it takes.
    (kernel,) = twin.numbers("persistent")
    warps = twin.warps[kernel]
    for registers in (64, 255):
        compiled = Resources(kernel, shared=1024, registers=registers, spills=0, warps=warps)
        made = entry(f, twin, Outcome(1e-6, resources=(compiled,)))
        assert made["config"]["persistent"] == {kernel: 65536 // (registers * 32 * warps)}
        assert made["key"].endswith(f"persistent.{kernel}={65536 // (registers * 32 * warps)}")
    failed = entry(f, twin, Outcome(None, Failure.SHARED, "too large"))
    assert (failed["error"], failed["key"]) == ("too large", twin.key())


def test_a_device_times_the_twins_of_the_best() -> None:
    class Compiling:
        """What all points are said to take."""

        basis = "none"

        def compile(self, points: Sequence[tuple[Candidate, Config]]) -> Iterator[Outcome]:
            return (Outcome(None) for _ in points)

        def close(self) -> None:
            pass

    def beside(_: Offered, best: Best) -> list[Config]:
        t = best.config.symbols["T"]
        made = replace(best.config, symbols={"T": 1 if t == 8 else 99}).having(persistent={"k": 1})
        return [] if t == 2 else [made]

    clock = Clock()
    bench = Bench(PROGRAM, GPU, {}, worker=clock)
    found = result(trial(0, 8, 3e-6), trial(1, 2, 4e-6), trial(2, 4, 5e-6))
    finalists: Any = [SimpleNamespace(variants=beside)] * 3
    twins = challengers(found.ranking, finalists)
    try:
        with Measuring(bench, compiler=Compiling()) as measuring:
            after = challenged(found, [candidate(n) for n in range(3)], measuring.remembered, twins)
    finally:
        bench.close()
    # The two best candidates; the second one has no twin.
    assert clock.asked == [[1]]
    assert len(after.trials) == 4
    assert after.ranking[0].config.numbers("persistent") == {"k": 1}
    assert after.ranking[0].seconds == pytest.approx(1e-6)
    assert [b.candidate for b in after.ranking] == [0, 1, 2]


def test_a_module_without_persistent_configurations_is_written_without_them() -> None:
    g = samples.matmul(BF16, m=4096, k=4096, n=4096).sgraph
    kernel = "matmul_kernel"
    one = Config({"T_m": 128, "T_n": 128, "T_k": 64}, {kernel: 4}, {kernel: 3})
    given: list[dict[str, list[Config]]] = [
        {},
        {"sm_90": [one.having(persistent={kernel: 1})]},
        {"sm_90": [one]},
    ]
    texts = [emit_module(g, formula="f", configs=configs).text for configs in given]
    assert [f"def {kernel}_tile(" in t for t in texts] == [True, True, False]
    assert [text.count("_resident") > 0 for text in texts] == [True, True, False]


def test_what_is_timed_of_a_study_can_be_persistent(tmp_path: Path) -> None:
    g = samples.matmul(BF16, m=4096, k=4096, n=4096).sgraph
    space, model = Space(g, H200, {}), Model(g, H200, {})
    points = [c for c in space.best(model, 8) if not c.options]
    beside, flat = variants(space.options, Offered.TIMING, points[1], model)
    tensors = [torch.empty(t.shape, dtype=torch.bfloat16, device="meta") for t in (*g.inputs, *g.outputs)]
    for timed in (False, True):
        folder = tmp_path / ("timed" if timed else "estimated")
        platform = PresentGpu(H200) if timed else AbsentGpu("sm_90", H200)
        path = emitted(folder, g, "f", platform, points, space.options)
        module = load_module(path, apart=True)
        for config in (points[1], beside, flat):
            # What descriptors there can be, a device says.
            ((_, grid, _, options),) = module.launches(*tensors, config=config.having(descriptors=()).encode())
            assert ("x_box" in options) == timed
            assert options.get("FLATTENED", False) == (timed and config is flat)
            tiles = model.occupancy("matmul_kernel", points[1])[0]
            # On meta tensors a device is said to have two multiprocessors.
            assert grid == (
                (2 * beside.numbers("persistent")["matmul_kernel"]) if timed and config is not points[1] else tiles,
            )
