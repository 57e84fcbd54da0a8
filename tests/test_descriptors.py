"""Loads by tensor descriptors: which qualify, that they read the same, what compilers make of them, who tries them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sgraph_samples as samples
import sgraph_small as small
import sympy
import torch
from compiled_code import CodeOf
from interpreting import Interpreted, InterpreterPool, InterpretJob
from sgraph_samples import BF16, F16, F32, SAMPLES, Sample
from short_calls import config_of
from test_folding import folded_config, program_of
from test_horizontal import draw, qkv, reference, tiles
from test_small_integers import both_codes
from triton.tools.tensor_descriptor import TensorDescriptor

from prism.backends import tile
from prism.backends.loading import load_module
from prism.backends.passes import tile_module
from prism.backends.tensor_descriptors import (
    DescriptorLoad,
    TensorMap,
    deciding,
    descriptor_loads,
    launch_descriptors,
    read_twice,
)
from prism.backends.tile import (
    Affine,
    Dim,
    Dot,
    For,
    Full,
    GridAxis,
    InBounds,
    Load,
    Offsets,
    Scalar,
    Stmt,
    TileProgram,
)
from prism.backends.tile import symbol as scalar
from prism.backends.triton.emit import emit_module
from prism.bench.prepare import module_facts
from prism.cost.constraints import footprint
from prism.cost.device import device
from prism.cost.model import Model
from prism.cost.shared_memory import Step, in_two_layouts, shared_memory
from prism.errors import BackendError
from prism.instantiate.gate.check import KernelRunner, check_module
from prism.instantiate.options import shown
from prism.instantiate.proposals import Point, Proposer
from prism.instantiate.space import VARIED, Space
from prism.instantiate.study import Candidate, _ordered
from prism.ir.kit import statements
from prism.program.extents import Extent, evaluate
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Tensor
from prism.sgraph.config import Config
from prism.sgraph.nodes import Load as SLoad
from prism.sgraph.nodes import Loop, SGraph
from prism.sgraph.nodes import Store as SStore

H200 = device("sm_90")
TOLERANCE = {F32: 2e-6, F16: 2e-3, BF16: 1.5e-2}


def described(g: SGraph, symbols: Mapping[str, int]) -> Config:
    """Descriptors wherever they are possible."""
    names = [x.name for x in g.launches]
    able = frozenset(launch_descriptors(tile_module(g)))
    return Config(dict(symbols), dict.fromkeys(names, 4), dict.fromkeys(names, 2)).having(descriptors=able)


# What qualifies.

QUALIFY = {
    "matmul": {"x", "w"},
    "symbolic_matmul": {"x", "w"},
    "split_k_matmul": {"x", "w"},
    "rmsnorm_linear": {"x", "w"},
    "attention": {"q", "k", "v"},
    "causal_symbolic": {"q", "k", "v"},
    # Heads and queries that are packed in one dimension of tiles stay with pointers.
    "grouped_attention": {"k", "v"},
    # So do masks that are loaded as bytes, and second stages.
    "split_attention": {"q", "k", "v"},
    "gated_mlp": {"x", "w1", "w2", "w3"},
    "batched_loop": {"x", "w"},
    "row_sums": {"x", "w"},
    "shared_axis_attention": {"q", "k", "v"},
    "running_state": {"q", "k", "v"},
    "decaying_state": {"q", "k", "v"},
    "state_before": {"q", "k", "v"},
}


@pytest.mark.parametrize("build", SAMPLES, ids=lambda b: b.__name__)
def test_products_in_loops_qualify_and_nothing_else(build: Callable[[DType], Sample]) -> None:
    found = launch_descriptors(tile_module(build(BF16).sgraph))
    assert {v.tensor.name for held in found.values() for v in held.views.values()} == QUALIFY.get(build.__name__, set())
    assert len(found) <= 1
    for held in found.values():
        assert set(held.views) == {name for name, _ in held.loads.values()}


def test_a_view_is_the_tensor_as_the_tile_cuts_it() -> None:
    ((_, held),) = launch_descriptors(tile_module(samples.causal_symbolic(BF16).sgraph)).items()
    ((name, k),) = [x for key, x in held.loads.items() if key[1] == "k"]
    seq = held.views["k_box"].shape[1]
    assert (name, k.looped, k.dims) == ("k_box", True, (None, "j", "a"))
    assert k.view.shape == (2, seq, 20)
    assert [str(s) for s in k.view.strides] == ["20*seq", "20", "1"]
    assert k.view.block == (1, "T_j", 32)
    assert [str(s) for s in k.start] == ["pid_h", "start_j", "0"]
    assert {held.loads[key][1].looped for key in held.loads if key[1] == "q"} == {False}


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        ({}, True),
        ({"M": 1}, True),
        ({"M": 0}, False),
        ({"T_m": 512}, False),
        ({"T_m": 8}, True),
        ({"T_m": 4}, False),
        ({"T_m": 1}, True),
        # A row of the box has to be 16 bytes.
        ({"T_k": 4}, False),
        ({"K": 76}, False),
        ({"F": 4}, False),
    ],
)
def test_what_hardware_takes(values: Mapping[str, int], fits: bool) -> None:
    k, m, f = (sympy.Symbol(n, integer=True, positive=True) for n in "KMF")
    view = TensorMap(Tensor("x", (m, k), BF16), f, (m, k), (k, 1), ("T_m", "T_k"))
    assert view.fits({"M": 40, "K": 72, "F": 8, "T_m": 64, "T_k": 32, **values}) is fits


# Programs of one load, at random: pointers and boxes read the same.

A, B = Axis("a", 11), Axis("b", 13)


@dataclasses.dataclass
class Drawn:
    """A program that loads a tile [a, b] in a loop, for a product, and the sizes of its tiles."""

    program: TileProgram
    load: Load
    numel: int


def one_load(tensor: Tensor, offset: Affine, bounds: Sequence[InBounds], *, lane_a: Extent, **kind: Any) -> Drawn:
    """The lane of `a` begins at `lane_a`; that of `b` at the loop's index."""
    dims = (
        Dim("a", (kind.get("axis_a", A),), (4,)),
        Dim("b", (B,), ("T_b",)),
        Dim("c", (Axis("c", 16),), (16,)),
        Dim("p", (A, B), (4, "T_b")),
    )
    load = Load("x", tensor.name, offset, tuple(b.dst for b in bounds), kind.get("dims", ("a", "b")), F32)
    other = Full("w", 1.0, ("b", "c"), F32)
    body: tuple[Stmt, ...] = (
        Scalar("skip", scalar("pid_part") * scalar("T_b")),
        Full("acc", 0.0, ("a", "c"), F32),
        Offsets("offs_a", kind.get("dim_a", "a"), 0, lane_a),
        Offsets("offs_c", "c", 0, 0),
        For(
            "start_b",
            kind.get("begin", scalar("skip")),
            B.extent,
            kind.get("step", scalar("T_b")),
            (
                Offsets("offs_b", kind.get("dim_b", "b"), kind.get("axis_b", 0), scalar("start_b")),
                For("r", 0, 3, 1, (*bounds, load, other, Dot("acc", "x", "w", add="acc"))),
            ),
        ),
    )
    grid = (GridAxis("pid_part", 2), GridAxis("pid_a", 3), GridAxis("pid_h", 2))
    constants = (tile.Constant("T_b", "T_b"),)
    program = TileProgram("p", (tensor,), (), constants, grid, dims, body)
    return Drawn(program, load, math.prod(tensor.shape))


def valued(e: Any, env: Mapping[str, int]) -> int:
    return int(e) if isinstance(e, int) else int(e.xreplace({s: sympy.Integer(env[s.name]) for s in e.free_symbols}))


def places(t_b: int) -> Iterator[dict[str, int]]:
    """The scalars of every program and iteration."""
    for part, a, h, r in itertools.product(range(2), range(3), range(2), range(3)):
        for start in range(part * t_b, 13, t_b):
            yield {"pid_part": part, "pid_a": a, "pid_h": h, "r": r, "start_b": start, "skip": part * t_b, "T_b": t_b}


def lanes(drawn: Drawn, env: Mapping[str, int]) -> dict[str, np.ndarray]:
    found: dict[str, Any] = dict(env)
    for s in statements(drawn.program.body):
        if isinstance(s, Offsets):
            at = np.arange(4)[:, None] if s.dim == "a" else np.arange(env["T_b"])[None, :]
            found[s.dst] = valued(s.start, env) + at
    return found


def affine(a: Affine, values: Mapping[str, Any], env: Mapping[str, int]) -> Any:
    return sum((values[n] * valued(c, env) for n, c in a.terms), start=np.zeros((1, 1), int)) + valued(a.offset, env)


def by_pointers(drawn: Drawn, memory: np.ndarray, env: Mapping[str, int]) -> np.ndarray | None:
    """The tile; None where an element that no mask keeps out is outside of the tensor."""
    values = lanes(drawn, env)
    address = np.broadcast_to(affine(drawn.load.offset, values, env), (4, env["T_b"]))
    seen = np.ones(address.shape, bool)
    for s in statements(drawn.program.body):
        if isinstance(s, InBounds) and s.dst in drawn.load.masks:
            index = affine(s.index, values, env)
            seen = seen & (True if s.high is None else index < valued(s.high, env))
            seen = seen & (True if s.low is None else index >= valued(s.low, env))
    if (seen & ((address < 0) | (address >= drawn.numel))).any():
        return None
    return np.where(seen, memory[np.where(seen, address, 0)], 0)


def by_box(box: DescriptorLoad, memory: np.ndarray, env: Mapping[str, int]) -> np.ndarray:
    """What the hardware is told to do."""
    view = box.view
    shape, strides, start = ([valued(e, env) for e in es] for es in (view.shape, view.strides, box.start))
    block = [env[b] if isinstance(b, str) else b for b in view.block]
    assert start[-1] % block[-1] == 0
    found = np.zeros(block)
    for place in itertools.product(*map(range, block)):
        at = [a + b for a, b in zip(start, place, strict=True)]
        if all(0 <= x < n for x, n in zip(at, shape, strict=True)):
            found[place] = memory[valued(view.offset, env) + sum(x * s for x, s in zip(at, strides, strict=True))]
    dims = [d for d in box.dims if d is not None]
    found = found.reshape([b for b, d in zip(block, box.dims, strict=True) if d is not None])
    return found.transpose([dims.index(d) for d in ("a", "b")])


def drawn_program(rng: random.Random) -> Drawn:
    """A tensor and an index of it: lanes, indices and constants, mostly one a dimension; masks, mostly the bounds."""
    shape: list[int] = []
    terms: dict[str, int] = {}
    constant = 0
    bounds: list[InBounds] = []
    dims: list[tuple[dict[str, int], int]] = []
    names = ["offs_a", "offs_b", *rng.sample(["pid_h", "r", "pid_part"], rng.randint(0, 2))]
    rng.shuffle(names)
    for name in names:
        extent = {"offs_a": 11, "offs_b": 13, "pid_h": 2, "r": 3, "pid_part": 2}[name]
        more = rng.choice([0, 0, 0, 3])
        own = {name: 1}
        if rng.random() < 0.1:
            own[rng.choice(["r", "pid_h"])] = 1
        dims.append((own, rng.choice([0, 0, 0, 0, 1, 4])))
        shape.append(extent + more + dims[-1][1] + (3 if len(own) > 1 else 0))
    if rng.random() < 0.2:
        shape.insert(0, 2)
        dims.insert(0, ({}, 1))
    stride = 1
    for (own, off), extent in reversed(list(zip(dims, shape, strict=True))):
        for name, factor in own.items():
            terms[name] = terms.get(name, 0) + factor * stride * (2 if rng.random() < 0.03 else 1)
        constant += off * stride
        stride *= extent
    for name, extent in (("offs_a", 11), ("offs_b", 13)):
        dim = name[-1:]
        high = extent - rng.choice([0, 0, 0, 2])
        if rng.random() < 0.95:
            bounds.append(InBounds(f"in_{dim}", Affine(((name, 1),)), high, None, (dim,), 4))
        if rng.random() < 0.1:
            bounds.append(InBounds(f"also_{dim}", Affine(((name, 1),)), rng.choice([5, 20]), None, (dim,)))
        if rng.random() < 0.05:
            bounds.append(InBounds(f"from_{dim}", Affine(((name, 1),)), None, 2, (dim,)))
    if rng.random() < 0.05:
        bounds.append(InBounds("sum", Affine((("offs_a", 1), ("offs_b", 1))), 9, None, ("a", "b")))
    lane = scalar("pid_a") * 4 if rng.random() < 0.9 else scalar("pid_a") * 2 + 1
    tensor = Tensor("t", tuple(shape), rng.choice([F32, BF16, DType.INT8]))
    return one_load(tensor, Affine(tuple(terms.items()), constant), bounds, lane_a=lane)


def test_boxes_read_what_pointers_read() -> None:
    rng = random.Random(7)
    compared = refused = 0
    for _ in range(260):
        drawn = drawn_program(rng)
        t_b = rng.choice([2, 4])
        memory = np.arange(1, drawn.numel + 1)
        tiles_ = [(env, by_pointers(drawn, memory, env)) for env in rng.sample(list(places(t_b)), 24)]
        if any(t is None for _, t in tiles_):
            continue
        box = descriptor_loads(drawn.program).get("x")
        if box is None:
            refused += 1
            continue
        compared += 1
        shape, strides = ([valued(e, {}) for e in es] for es in (box.view.shape, box.view.strides))
        for n in range(len(shape) - 1):
            assert strides[n] % strides[n + 1] == 0
            assert strides[n] >= strides[n + 1] * shape[n + 1]
        for env, want in tiles_:
            assert want is not None
            assert (by_box(box, memory, env) == want).all()
    assert compared > 60
    assert refused > 20


PLAIN = Tensor("t", (2, 11, 13), BF16)
ADDRESS = Affine((("pid_h", 143), ("offs_a", 13), ("offs_b", 1)))
BOUNDS = (
    InBounds("in_a", Affine((("offs_a", 1),)), 11, None, ("a",)),
    InBounds("in_b", Affine((("offs_b", 1),)), 13, None, ("b",)),
)
PID_A = scalar("pid_a") * 4


def test_the_plain_load_qualifies() -> None:
    (box,) = descriptor_loads(one_load(PLAIN, ADDRESS, BOUNDS, lane_a=PID_A).program).values()
    assert box.view == TensorMap(PLAIN, 0, (2, 11, 13), (143, 13, 1), (1, 4, "T_b"))
    # A bound below the tensor's own is the view's.
    lower = (dataclasses.replace(BOUNDS[0], high=9), BOUNDS[1])
    (box,) = descriptor_loads(one_load(PLAIN, ADDRESS, lower, lane_a=PID_A).program).values()
    assert box.view.shape == (2, 9, 13)
    # An axis that is one tile needs no mask.
    whole = dataclasses.replace(PLAIN, shape=(2, 4, 13))
    address = Affine((("pid_h", 52), *ADDRESS.terms[1:]))
    (box,) = descriptor_loads(one_load(whole, address, BOUNDS[1:], lane_a=0, axis_a=Axis("a", 4)).program).values()
    assert box.view.shape == (2, 4, 13)


@pytest.mark.parametrize(
    ("address", "bounds", "kind"),
    [
        # A mask that keeps out what is inside of every view: from below, of two lanes, of an index.
        (ADDRESS, (*BOUNDS, InBounds("m", Affine((("offs_b", 1),)), None, 2, ("b",))), {}),
        (ADDRESS, (*BOUNDS, InBounds("m", Affine((("offs_b", 1),)), 13, 2, ("b",))), {}),
        (ADDRESS, (*BOUNDS, InBounds("m", Affine((("offs_c", 1),)), 9, None, ("c",))), {}),
        (ADDRESS, (*BOUNDS, InBounds("m", Affine((("offs_a", 1), ("offs_b", -1))), 1, None, ("a", "b"))), {}),
        (ADDRESS, (*BOUNDS, InBounds("m", Affine((("pid_h", 1),)), 1, None, ())), {}),
        (ADDRESS, (*BOUNDS, InBounds("m", Affine((("offs_b", 1),), 1), 13, None, ("b",))), {}),
        # Rows that overlap; elements that are not neighbours; an address before the tensor.
        (Affine((("offs_a", 1), ("offs_b", 1))), BOUNDS, {}),
        (Affine((("offs_a", 12), ("offs_b", 1))), BOUNDS, {}),
        (Affine((("offs_a", 26), ("offs_b", 2))), BOUNDS, {}),
        (Affine((("offs_a", 13), ("offs_b", -1)), 12), BOUNDS, {}),
        (Affine((("offs_a", 13), ("offs_b", 1)), -1), BOUNDS, {}),
        # Tiles that may leave the axis without a mask.
        (ADDRESS, BOUNDS[1:], {}),
        # An index between the lanes that may leave its row.
        (Affine((("offs_a", 26), ("r", 13), ("offs_b", 1))), BOUNDS, {}),
        # One lane alone is no box; a loop whose first element is no multiple of the tile is not aligned.
        (Affine((("offs_b", 1),)), BOUNDS[1:], {"dims": ("b",)}),
        (ADDRESS, BOUNDS, {"begin": 1}),
        (ADDRESS, BOUNDS, {"step": 3}),
        # Two axes in one dimension of tiles.
        (ADDRESS, BOUNDS, {"dims": ("p",), "dim_a": "p", "dim_b": "p", "axis_b": 1}),
        (ADDRESS, BOUNDS, {"dims": ("p", "b"), "dim_a": "p"}),
    ],
)
def test_everything_else_stays_with_pointers(
    address: Affine, bounds: Sequence[InBounds], kind: Mapping[str, Any]
) -> None:
    assert not descriptor_loads(one_load(PLAIN, address, bounds, lane_a=PID_A, **kind).program)


def test_only_what_feeds_a_product_in_a_loop_qualifies() -> None:
    drawn = one_load(PLAIN, ADDRESS, BOUNDS, lane_a=PID_A)
    outer = drawn.program.body[-1]
    assert isinstance(outer, For)
    inner = outer.body[-1]
    assert isinstance(inner, For)
    without = dataclasses.replace(inner, body=inner.body[:-1])
    alone = dataclasses.replace(outer, body=(*outer.body[:-1], without))
    assert not descriptor_loads(dataclasses.replace(drawn.program, body=(*drawn.program.body[:-1], alone)))
    (apart,) = tile_module(samples.heads_projection(BF16).sgraph).programs
    assert any(isinstance(s, Dot) for s in apart.body)
    assert not descriptor_loads(apart)


def test_a_launch_has_descriptors_where_one_is_in_a_loop() -> None:
    # What is loaded before the loop alone is loaded once.
    module = tile_module(samples.attention(BF16).sgraph)
    assert {n: set(x.views) for n, x in launch_descriptors(module).items()} == {
        "attention_kernel": {"q_box", "k_box", "v_box"}
    }
    (program,) = module.programs

    def blind(s: Stmt) -> Stmt:
        if isinstance(s, For):
            return dataclasses.replace(s, body=tuple(map(blind, s.body)))
        return dataclasses.replace(s, masks=("absent",)) if isinstance(s, Load) and s.tensor != "q" else s

    changed = dataclasses.replace(program, body=tuple(map(blind, program.body)))
    assert list(descriptor_loads(changed)) == ["q"]
    launch = dataclasses.replace(module.launches[0], programs=(changed,))
    assert not launch_descriptors(dataclasses.replace(module, launches=(launch,)))
    # A second stage that may be folded is called by another kernel, which passes no descriptors on.
    assert not launch_descriptors(
        dataclasses.replace(module, folds=(tile.TileFold("another", "attention_kernel", ()),))
    )


def test_a_view_has_five_dimensions_at_most() -> None:
    # Lanes and indices in turn: none of the indices are neighbours.
    def strides(names: Sequence[str], extents: Sequence[int]) -> tuple[Tensor, Affine]:
        steps = list(itertools.accumulate(reversed(extents), initial=1, func=int.__mul__))[-2::-1]
        return Tensor("t", tuple(extents), BF16), Affine(tuple(zip(names, steps, strict=True)))

    names, extents = ["pid_part", "offs_a", "pid_h", "offs_b", "r", "offs_c"], [2, 11, 2, 13, 3, 16]
    tensor, address = strides(names[1:], extents[1:])
    (box,) = descriptor_loads(one_load(tensor, address, BOUNDS, lane_a=PID_A, dims=("a", "b", "c")).program).values()
    assert box.view.shape == (11, 2, 13, 3, 16)
    tensor, address = strides(names, extents)
    assert not descriptor_loads(one_load(tensor, address, BOUNDS, lane_a=PID_A, dims=("a", "b", "c")).program)


# In the interpreter, at ragged extents.

STRICT = """

_offered = _box


def _box(*args):
    found = _offered(*args)
    if found is None:
        raise ValueError("no descriptor")
    return found
"""


@dataclasses.dataclass(frozen=True)
class Run:
    sample: Sample
    dtype: DType
    inputs: list[np.ndarray]
    symbols: Mapping[str, int]
    name: str


def runs() -> list[Run]:
    made: list[Run] = []
    for dtype, build in itertools.product((F32, F16, BF16), SAMPLES):
        sample = build(dtype)
        # Rows that are not 16 bytes long have no descriptor: see below.
        if build.__name__ in QUALIFY and (dtype is F32 or build.__name__ not in UNALIGNED):
            symbols = sample.symbols if dtype is F32 else sample.symbols[:1]
            for binding, tile_sizes in itertools.product(sample.bindings, symbols):
                # Boxes have 8 rows at the least.
                chosen = {n: max(v, 8) if n == "T_g" else v for n, v in tile_sizes.items()}
                inputs = sample.inputs(binding, seed=len(made))
                made.append(Run(sample, dtype, inputs, chosen, f"{build.__name__}-{dtype.value}-{len(made)}"))
    return made


UNALIGNED = {"attention", "causal_symbolic", "batched_loop", "split_k_matmul"}
RUNS = runs()


def job(folder: Path, r: Run, text: str, config: Config) -> InterpretJob:
    path = folder / f"{r.name}.py"
    path.write_text(text)
    dtypes = tuple(t.dtype.value for t in r.sample.sgraph.inputs)
    return InterpretJob(path, r.sample.sgraph.name, tuple(r.inputs), dtypes, config)


@pytest.fixture(scope="module")
def outcomes(interpreter: InterpreterPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Interpreted]:
    folder = tmp_path_factory.mktemp("modules")
    jobs = []
    for r in RUNS:
        source = emit_module(r.sample.sgraph, formula="f", configs={})
        made = job(folder, r, source.text + STRICT, described(r.sample.sgraph, r.symbols))
        jobs.append(dataclasses.replace(made, entry=source.entry))
    return {r.name: found for r, found in zip(RUNS, interpreter.run_many(jobs), strict=True)}


@pytest.mark.parametrize("run", RUNS, ids=lambda r: r.name)
def test_a_sample_computes_its_closed_form(run: Run, outcomes: dict[str, Interpreted]) -> None:
    result = outcomes[run.name]
    assert not result.error
    expected = run.sample.reference(*(np.asarray(a, np.float64) for a in run.inputs))
    for got, want in zip(result.outputs, expected, strict=True):
        assert (np.isnan(got) == np.isnan(want)).all()
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[run.dtype] * np.nanmax(np.abs(want)))


def test_rows_that_are_not_aligned_are_read_by_pointers(interpreter: InterpreterPool, tmp_path: Path) -> None:
    sample = samples.attention(BF16)
    r = Run(sample, BF16, sample.inputs({}), sample.symbols[0], "attention")
    source = emit_module(sample.sgraph, formula="f", configs={})
    config = described(sample.sgraph, r.symbols)
    made = dataclasses.replace(job(tmp_path, r, source.text, config), entry=source.entry)
    plainly = dataclasses.replace(made, config=config.having(descriptors=()))
    assert config.launches("descriptors")
    ((one,), (other,)) = (interpreter.run(j) for j in (made, plainly))
    assert (one == other).all()
    strict = tmp_path / "strict.py"
    strict.write_text(source.text + STRICT)
    assert "no descriptor" in interpreter.run_many([dataclasses.replace(made, module=strict)])[0].error


@pytest.mark.parametrize("rows", [1, 35])
def test_several_kernels_in_one_launch(interpreter: InterpreterPool, tmp_path: Path, rows: int) -> None:
    g = qkv()
    inputs = draw(g, {"M": rows}, seed=rows)
    source = emit_module(g, formula="f", configs={})
    path = tmp_path / "module.py"
    path.write_text(source.text + STRICT)
    config = described(g, tiles(g))
    assert config.launches("descriptors") == {"qkv_q_k_v_kernel"}
    found = interpreter.run(InterpretJob(path, source.entry, tuple(inputs), ("float32",) * 4, config))
    for got, want in zip(found, reference(*inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())
    # What two of the kernels read in equal boxes has one descriptor.
    assert source.text.count("= _box(x, (M, 72), (72, 1)") == 3


def test_a_split_that_goes_on_with_its_second_stage(interpreter: InterpreterPool, tmp_path: Path) -> None:
    sample = samples.split_k_matmul()
    g = sample.sgraph
    config = folded_config(g, sample.symbols[0]).having(descriptors=frozenset({"split_kernel"}))
    source = emit_module(g, formula="f", configs={"sm_90": [config]})
    assert module_facts(source.text)[0] == [config.encode()]
    path = tmp_path / "module.py"
    path.write_text(source.text + STRICT)
    inputs = sample.inputs({})
    (got,) = interpreter.run(InterpretJob(path, source.entry, tuple(inputs), ("float32",) * 2, config))
    (want,) = sample.reference(*(np.asarray(a, np.float64) for a in inputs))
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())


def test_the_gate_runs_descriptors_and_catches_wrong_ones(runner: KernelRunner, tmp_path: Path) -> None:
    sample = samples.split_k_matmul()
    g = sample.sgraph
    config = described(g, sample.symbols[1])
    path = tmp_path / "module.py"
    path.write_text(emit_module(g, formula="f", configs={}).text)
    report = check_module(program_of(sample), path, g, config, runner=runner, limit=3)
    assert report.passed, report.failures
    wrong = tmp_path / "wrong.py"
    text = path.read_text()
    assert "_box(w, (100, 24)" in text
    wrong.write_text(text.replace("_box(w, (100, 24)", "_box(w, (96, 24)"))
    assert not check_module(program_of(sample), wrong, g, config, runner=runner, limit=3).passed
    unused = config.having(descriptors=())
    assert check_module(program_of(sample), wrong, g, unused, runner=runner, limit=3).passed


# The module.


def launched(text: str, folder: Path, tensors: Sequence[Any], config: Config) -> dict[str, Any]:
    path = folder / "launched.py"
    path.write_text(text)
    ((_, _, _, meta),) = load_module(path, apart=True).launches(*tensors, config=config.encode())
    return {n: v for n, v in meta.items() if n.endswith("_box")}


def test_the_host_looks_at_the_tensors_of_the_call(tmp_path: Path) -> None:
    sample = samples.symbolic_matmul(BF16)
    text = emit_module(sample.sgraph, formula="f", configs={}).text
    config = described(sample.sgraph, sample.symbols[0])
    shapes = [[evaluate(e, {"M": 40}) for e in t.shape] for t in (*sample.sgraph.inputs, *sample.sgraph.outputs)]
    x, w, y = (torch.zeros(s, dtype=torch.bfloat16) for s in shapes)
    found = launched(text, tmp_path, (x, w, y), config)
    assert set(found) == {"x_box", "w_box"}
    assert isinstance(found["x_box"], TensorDescriptor)
    assert found["x_box"].base is x
    assert (found["x_box"].shape, found["x_box"].strides, found["x_box"].block_shape) == ([40, 72], [72, 1], [16, 32])
    # One of them begins at an odd address: it alone is read by pointers.
    odd = torch.zeros(x.numel() + 1, dtype=torch.bfloat16)[1:].view(x.shape)
    found = launched(text, tmp_path, (odd, w, y), config)
    assert (found["x_box"] is None, found["w_box"] is None) == (True, False)
    wide = dataclasses.replace(config, symbols={**config.symbols, "T_m": 512})
    assert launched(text, tmp_path, (x, w, y), wide)["x_box"] is None
    low = dataclasses.replace(config, symbols={**config.symbols, "T_m": 4})
    assert launched(text, tmp_path, (x, w, y), low)["x_box"] is None
    empty = launched(text, tmp_path, (x[:0], w, y[:0]), config)
    assert empty["x_box"] is None
    none = launched(text, tmp_path, (x, w, y), config.having(descriptors=()))
    assert none == {"x_box": None, "w_box": None}


def test_modules_are_printed_with_descriptors_where_a_configuration_has_them() -> None:
    g = samples.matmul(BF16).sgraph
    config = described(g, samples.matmul(BF16).symbols[0])
    text = emit_module(g, formula="f", configs={"sm_90": [config]}).text
    assert module_facts(text)[0] == [config.encode()]
    assert '"descriptors": ["matmul_kernel"],' in text
    assert max(map(len, text.splitlines())) <= 120
    assert "from triton.tools.tensor_descriptor import TensorDescriptor" in text
    without = config.having(descriptors=())
    assert "escriptor" not in emit_module(g, formula="f", configs={"sm_90": [without]}).text
    assert "_box" in emit_module(g, formula="f", configs={"sm_90": [without, config]}).text
    wrong = config.having(descriptors=frozenset({"rotated_kernel"}))
    with pytest.raises(BackendError, match="no load of the launch rotated_kernel"):
        emit_module(g, formula="f", configs={"sm_90": [wrong]})
    assert "escriptor" not in emit_module(samples.rotated(BF16).sgraph, formula="f", configs={}).text


def second_half(dtype: DType = F32) -> Sample:
    """x times the second half of w's columns, as where a gate and an up projection are one tensor."""
    whole = samples.matmul(dtype)
    x, w = whole.sgraph.inputs
    (kernel,) = whole.sgraph.kernels

    def later(s: Any) -> Any:
        if isinstance(s, SLoad) and s.tensor == "w":
            return dataclasses.replace(s, index=(s.index[0], s.index[1] + Index((), w.shape[1])))
        return dataclasses.replace(s, body=tuple(map(later, s.body))) if isinstance(s, Loop) else s

    kernel = dataclasses.replace(kernel, body=tuple(map(later, kernel.body)))
    wide = dataclasses.replace(w, shape=(w.shape[0], 2 * w.shape[1]))
    g = dataclasses.replace(whole.sgraph, inputs=(x, wide), kernels=(kernel,))
    return Sample(g, lambda a, b: (a @ b[:, b.shape[1] // 2 :],), ({},), whole.symbols)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_a_part_of_a_tensor_is_described_from_where_it_begins(
    interpreter: InterpreterPool, tmp_path: Path, dtype: DType
) -> None:
    sample = second_half(dtype)
    g = sample.sgraph
    view = launch_descriptors(tile_module(g))["matmul_kernel"].views["w_box"]
    assert (view.offset, view.shape, view.strides) == (24, (72, 24), (48, 1))
    source = emit_module(g, formula="f", configs={})
    assert "_box(w.flatten()[24:], (72, 24), (48, 1), (T_k, T_n))" in source.text
    path = tmp_path / "module.py"
    path.write_text(source.text + STRICT)
    inputs = sample.inputs({})
    config = described(g, sample.symbols[0])
    (got,) = interpreter.run(InterpretJob(path, source.entry, tuple(inputs), (dtype.value,) * 2, config))
    (want,) = sample.reference(*(np.asarray(a, np.float64) for a in inputs))
    np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE[dtype] * np.abs(want).max())


def test_coordinates_need_no_wide_integers() -> None:
    module = tile_module(samples.matmul(BF16, 65536, 65536, 64).sgraph)
    loads = {s.tensor: s for p in module.programs for s in statements(p.body) if isinstance(s, Load)}
    assert loads["x"].offset.wide
    assert launch_descriptors(module)["matmul_kernel"].views["x_box"].shape == (65536, 65536)


def test_a_descriptor_has_a_name_of_its_own() -> None:
    g = samples.matmul(BF16).sgraph
    (kernel,) = g.kernels
    clash = dataclasses.replace(g, kernels=(dataclasses.replace(kernel, name="x_box"),))
    assert list(launch_descriptors(tile_module(clash))["x_box"].views) == ["x_box_2", "w_box"]


# What compilers make of it.

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")


@pytest.fixture(scope="module")
def assembly(code_of: CodeOf) -> dict[tuple[str, str], str]:
    """By kernel and target; each is asked for with descriptors."""
    cases: list[tuple[str, SGraph, Config, tuple[str, ...]]] = []
    product = samples.matmul(BF16, 128, 128, 128)
    cases.append(("matmul", product.sgraph, described(product.sgraph, {"T_m": 64, "T_n": 64, "T_k": 64}), TARGETS))
    heads = samples.attention(BF16, heads=2, seq=256, d=64)
    cases.append(("attention", heads.sgraph, described(heads.sgraph, {"T_i": 64, "T_j": 64}), TARGETS[1:2]))
    three = qkv(128, 128, {"q": 128, "k": 64, "v": 64}, BF16)
    cases.append(("qkv", three, described(three, {s.name: 64 for s in three.symbols}), TARGETS[1:2]))
    split = samples.split_k_matmul(BF16, 64, 512, 64)
    symbols = {"T_m": 64, "T_n": 64, "T_k": 64, "S_k": 2, "T_m_c": 64, "T_n_c": 64}
    folded = folded_config(split.sgraph, symbols).having(descriptors=frozenset({"split_kernel"}))
    cases.append(("split", split.sgraph, folded, TARGETS[1:2]))
    found = {(name, t): code_of(g, config, t)[0] for name, g, config, targets in cases for t in targets}
    return {key: code.amdgcn or code.ptx for key, code in found.items()}


@pytest.mark.parametrize("name", ["matmul", "attention", "qkv", "split"])
def test_hopper_copies_boxes_and_nothing_else(assembly: dict[tuple[str, str], str], name: str) -> None:
    text = assembly[name, "sm_90"]
    assert "cp.async.bulk.tensor" in text
    assert "cp.async.cg" not in text
    # The operands go from shared memory to the matrix units.
    assert "wgmma.mma_async" in text
    # Several copies are on their way before the loop: two stages of two operands, at the least.
    assert text.count("cp.async.bulk.tensor") >= 4


def test_blackwell_does_and_others_have_pointers(assembly: dict[tuple[str, str], str]) -> None:
    assert "cp.async.bulk.tensor" in assembly["matmul", "sm_100"]
    assert "tcgen05.mma" in assembly["matmul", "sm_100"]
    assert "cp.async.bulk" not in assembly["matmul", "sm_80"]
    # Pipelined as without descriptors: what Triton makes of a descriptor there is not.
    assert "cp.async.cg" in assembly["matmul", "sm_80"]
    assert "v_mfma" in assembly["matmul", "gfx942"]


# Configurations and spaces.


def test_a_configuration_goes_through_the_lock_and_its_key_tells() -> None:
    g = samples.matmul(BF16).sgraph
    config = described(g, samples.matmul(BF16).symbols[0])
    assert config_of(json.loads(json.dumps(config.flat()))) == config
    without = config.having(descriptors=())
    assert config.key() != without.key()
    assert "descriptors" not in without.encode()
    assert config.encode()["descriptors"] == ["matmul_kernel"]
    assert shown("matmul_kernel", ["T_m"], config) == "T_m=16 warps=4 stages=2 descriptors"
    assert shown("matmul_kernel", ["T_m"], without) == "T_m=16 warps=4 stages=2"


def test_the_best_points_have_twins_with_descriptors() -> None:
    g = small.attention()
    space, model = Space(g, H200, {}), Model(g, H200, {})
    best = tuple(c for c in space.best(model, 41) if not c.launches("library"))
    assert len(best) == 40
    assert not any(c.launches("descriptors") for c in best)
    found = space.varied(best, model)
    assert len(found) == len(best) + VARIED
    assert tuple(c for c in found if not c.launches("descriptors")) == best
    for c, twin in zip(found[::2][:VARIED], found[1::2], strict=False):
        assert twin == c.having(descriptors=frozenset({g.kernels[0].name}))
        assert space.feasible(c)
        assert space.feasible(twin)
        # No estimate prefers one of them before the compiler has been asked.
        assert model.seconds(c) == model.seconds(twin)
    assert not space.feasible(best[0].having(descriptors=frozenset({"another"})))
    assert space.varied(best, model, 0) == best


def norm(n: int = 4096) -> SGraph:
    return samples.rmsnorm_linear(BF16, m=64, d=4096, n=n).sgraph


def test_a_tile_in_two_layouts_is_loaded_by_descriptors_wherever_they_fit() -> None:
    g = norm()
    (name,) = (x.name for x in g.launches)
    ((_, held),) = launch_descriptors(tile_module(g)).items()
    assert {b.view.tensor.name for _, b in held.loads.values() if b.twice} == {"x"}
    (launch,) = tile_module(g).launches
    assert deciding(launch, held, ["T_m", "T_n", "T_d"], twice=True) == ["T_m", "T_d"]
    space, model = Space(g, H200, {}), Model(g, H200, {})
    points = list(space.configs())
    for c in points[:: len(points) // 50]:
        m, d = (c.symbols[n] for n in ("T_m", "T_d"))
        fits = (m == 1 or m >= 8) and d <= 256
        assert c.launches("descriptors") == ({name} if fits else set())
        assert space.feasible(c)
        # Tables and configurations say the same.
        table = space.launches[0]
        row = {**c.symbols, f"descriptors.{name}": int(fits)}
        estimate = model.launches[0].seconds(row, c.warps[name], c.stages[name])
        assert float(estimate) == pytest.approx(model.seconds(c), rel=1e-9)
        assert f"descriptors.{name}" in table.names
    best = space.best(model, 3)
    assert all(c.launches("descriptors") for c in best)
    # A device may still say that pointers are faster: the best points are tried so, too.
    without = best[0].having(descriptors=())
    assert space.varied(best, model)[:2] == (best[0], without)
    assert space.feasible(without)
    assert model.seconds(without) > model.seconds(best[0])


def test_two_launches_with_such_tiles_have_a_column_each() -> None:
    g = norm()
    (kernel,) = g.kernels
    own = {a: dataclasses.replace(r, tile=samples.sym(f"U_{a.name}")) for a, r in kernel.roles}
    stored = kernel.body[-1]
    assert isinstance(stored, SStore)
    body = (*kernel.body[:-1], dataclasses.replace(stored, tensor="z"))
    other = dataclasses.replace(kernel, name="other", roles=tuple(own.items()), body=body)
    outputs = (*g.outputs, dataclasses.replace(g.outputs[0], name="z"))
    both = dataclasses.replace(g, kernels=(kernel, other), outputs=outputs)
    space = Space(both, H200, {})
    (best,) = space.best(Model(both, H200, {}), 1)
    assert best.launches("descriptors") == {kernel.name, "other"}
    assert space.feasible(best)


def test_where_nothing_reads_it_twice_or_no_descriptor_fits_there_is_no_rule() -> None:
    # Its rows are no whole 16 bytes.
    odd = samples.rmsnorm_linear(BF16, m=64, d=4092, n=4096).sgraph
    for g, target in ((small.matmul(4096, 4096, 4096, BF16), "sm_90"), (odd, "sm_90"), (norm(), "sm_80")):
        space = Space(g, device(target), {})
        assert not any(c.launches("descriptors") for c in space.best(Model(g, device(target), {}), 8))
    for build in (samples.attention, samples.shared_axis_attention, samples.gated_mlp):
        assert not any(
            b.twice for h in launch_descriptors(tile_module(build(BF16).sgraph)).values() for _, b in h.loads.values()
        )


# Of a mask both the largest score and the weights are made.
READ_TWICE = {"rmsnorm_linear": {"x"}, "row_sums": {"x"}, "split_attention": {"mask"}}


@pytest.mark.parametrize("build", SAMPLES, ids=lambda b: b.__name__)
def test_the_estimate_counts_conflicts_of_the_tiles_that_descriptors_are_the_rule_for(
    build: Callable[[DType], Sample],
) -> None:
    agree_on_layouts(build(BF16).sgraph, READ_TWICE.get(build.__name__, set()))


@pytest.mark.parametrize(("g", "tensors"), [(both_codes(sums=True), {"x"}), (both_codes(), set())])
def test_so_they_do_of_pairs(g: SGraph, tensors: set[str]) -> None:
    agree_on_layouts(g, tensors)


def test_a_sum_that_goes_into_the_product_reads_its_tile_apart() -> None:
    scaled = [Step("s", ("x", "r"), "elements"), Step("p", ("s", "w"), "product"), Step("acc", ("p",), "other")]
    reduced = Step("r", ("x",), "other")
    assert in_two_layouts([reduced, *scaled]) == {"x": "p"}
    assert in_two_layouts(scaled) == {}
    # What is computed of a tile and goes nowhere near the product counts, too.
    assert in_two_layouts([*scaled, Step("y", ("w",), "elements")]) == {"w": "p"}


def agree_on_layouts(g: SGraph, tensors: set[str]) -> None:
    """Checks that sGraph and tile programs say the same of which tiles are read in two layouts: those of `tensors`."""
    estimated = [s.tensor for k in g.kernels for s in shared_memory(footprint(k, g)).tiles]
    loads = [
        s.tensor
        for p in tile_module(g).programs
        for s in statements(p.body)
        if isinstance(s, Load) and len(s.dims) > 1 and s.dst in read_twice(p)
    ]
    assert set(estimated) == tensors
    assert sorted(estimated) == sorted(loads)


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
def test_older_devices_have_none(target: str) -> None:
    g, d = small.attention(), device(target)
    space = Space(g, d, {})
    best = space.best(Model(g, d, {}), 4)
    assert space.varied(best, Model(g, d, {})) == best
    assert not space.feasible(best[0].having(descriptors=frozenset({g.kernels[0].name})))


def test_library_calls_products_without_units_and_rows_that_do_not_fit_have_none() -> None:
    product = small.matmul(4096, 4096, 4096, BF16)
    space, model = Space(product, H200, {}), Model(product, H200, {})
    (call, *others) = space.best(model, 8)
    assert call.launches("library")
    found = space.varied([call, *others], model)
    assert found[:3] == (call, others[0], others[0].having(descriptors=frozenset({"matmul"})))
    for g in (small.matvec(), small.layer_norm(), small.matmul(512, 764, 1020, BF16)):
        other = Space(g, H200, {})
        model = Model(g, H200, {})
        assert not any(c.launches("descriptors") for c in other.varied(other.best(model, 4), model))


def test_a_study_tries_the_twin_after_its_point(tmp_path: Path) -> None:
    g = small.attention()
    model, space = Model(g, H200, {}), Space(g, H200, {})
    own = tuple(c for c in space.best(model, 17) if not c.launches("library"))
    one = Candidate("k", g, tmp_path / "m.py", space.varied(own, model), model.seconds)
    order = [p.config for p in _ordered([one])]
    assert [bool(c.launches("descriptors")) for c in order[:4]] == [False, True, False, True]
    assert order[1] == order[0].having(descriptors=order[1].launches("descriptors"))
    proposer = Proposer([one.points], [Point(0, p) for p in one.points], 0)
    vectors = [proposer.parameters(Point(0, p))[0] for p in one.points]
    assert len({json.dumps(v, sort_keys=True) for v in vectors}) == len(one.points) == 16 + VARIED
