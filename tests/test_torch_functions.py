"""Random torch functions (torch_functions.py): read as what they are, and their kernels compute what torch computes.

Each ends equal, or in an error that says what is not supported.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_functions
from cpu_batch import Array, Case
from sgraph_programs import task
from test_backends import NEEDS_COMPILER, SIZES, Runs, assignment
from test_cpu_conformance import WIDE
from torch.export import Dim
from torch.nn import functional as F
from torch_functions import NAMED, Function, at_sizes

from prism.api.region_search import SearchBudget
from prism.api.searching import search
from prism.backends.cpu.support import find_compiler
from prism.errors import UnsupportedError
from prism.frontend.torch.reader import trace
from prism.generate.enumerate import generate
from prism.program.evaluate import bind, evaluate
from prism.program.integers import PLACES_ASSUMED, assumptions
from prism.program.nodes import DType, Program
from prism.sgraph.nodes import SGraph

TOLERANCE = {DType.BFLOAT16: 6e-2, DType.FLOAT16: 8e-3}
BUDGET = SearchBudget(max_sgraphs=8, enodes=4000, iterations=10)


# What is masked


@dataclass(frozen=True)
class Kernels:
    """An sGraph of a function, and what it has to compute.

    Attributes:
        function: where it is from.
        case: the sGraph, its tile sizes and inputs.
        want: the oracle's outputs.
        defined: whether only what the oracle has a number for is compared: what was searched may differ elsewhere.
        tolerance: of the outputs that are no whole numbers, against the largest.
    """

    function: Function
    case: Case
    want: Sequence[Array]
    defined: bool
    tolerance: float

    def difference(self, got: Sequence[Array]) -> str:
        """What differs; empty where nothing does."""
        for t, mine, want in zip(self.case.sgraph.outputs, got, self.want, strict=True):
            numbers = np.isfinite(want)
            same = mine.shape == want.shape and np.isfinite(mine)[numbers].all()
            if same and not self.defined and t.dtype.is_float:  # no whole number is NaN
                same = np.array_equal(mine[~numbers], want[~numbers], equal_nan=True)
            scale = np.abs(want[numbers]).max(initial=1e-30) * (self.tolerance if t.dtype.is_float else 0.0)
            if not same or (np.abs(mine - want)[numbers] > scale).any():
                return f"{t.name}: {mine.ravel()[:8]} for {want.ravel()[:8]}"
        return ""

    def __str__(self) -> str:
        return f"{self.function}{dict(self.case.symbols)}"


def arrays(f: Function, seed: int) -> Mapping[str, Array]:
    """Inputs: the function's own, or halves, with ties among them."""
    rng = np.random.default_rng([29, seed])
    made = {}
    for n, t in f.inputs.items():
        floats = t.is_floating_point()
        other = torch.tensor(rng.integers(-8, 9, t.shape) / 2).to(t.dtype) if floats and seed else t
        made[n] = (other.float() if floats else other).numpy()
    return made


def traced(f: Function) -> Program | None:
    """The program of a function; None where it is refused."""
    try:
        return trace(f.call, tuple(f.inputs.values()), name="f")
    except UnsupportedError:
        return None


def kernels(f: Function, target: str, plain: int, searched: int) -> Iterator[Kernels]:
    """Some sGraphs as the function is written, and some that the search proves."""
    choose = random.Random(f.seed)
    p = traced(f)
    if p is None:
        return
    try:
        given = task(p)
    except UnsupportedError:  # a reshape that has no affine index
        return
    made = [c.sgraph for c in generate(given, WIDE).candidates]
    chosen = [(g, False) for g in choose.sample(made, min(plain, len(made)))]
    if searched:
        proved: list[tuple[SGraph, bool]] = []
        with suppress(UnsupportedError), search(p, target=target, budget=BUDGET) as found:
            proved = [(q.sgraph, True) for q in found]
        chosen += choose.sample(proved, min(searched, len(proved)))
    types = {t.dtype for t in p.inputs} | {d.dtype for d in p.definitions}
    for n, (g, defined) in enumerate(chosen):
        inputs = {**arrays(f, n), **{name: np.asarray(w) for name, w in p.weights.items()}}
        with np.errstate(all="ignore"):
            want = evaluate(p, inputs)
        case = Case(g, assignment(g, choose, SIZES), [inputs[t.name] for t in g.inputs])
        tolerance = max(TOLERANCE.get(t, 3e-5) for t in types)
        yield Kernels(f, case, [np.asarray(want[t.name], np.float64) for t in g.outputs], defined, tolerance)


def run(target: str, made: Sequence[Kernels], folder: Path) -> list[str]:
    """What differs, of all."""
    runs = Runs(target)
    with closing(runs.child):
        made = [k for k in made if k.defined or emitted(runs, k)]
        cases = [k.case for k in made]
        results = runs.together(cases, folder, "-O1") if target == "cpu" else runs.apart(cases, folder)
        told = []
        for k, got in zip(made, results, strict=True):
            if isinstance(got, str):
                told.append(f"{k}: {got}")
            elif not all(o.written.all() for o in got):
                told.append(f"{k}: not all is written")
            elif difference := k.difference([o.values for o in got]):
                told.append(f"{k}: {difference}")
    return told


def emitted(runs: Runs, made: Kernels) -> bool:
    """Whether the backend takes an sGraph that was made for another device; what was searched for it, it takes."""
    try:
        runs.backend.emit(made.case.sgraph)
    except UnsupportedError:
        return False
    return True


def masked(seeds: Sequence[int]) -> list[Function]:
    return [f for s in seeds if (f := torch_functions.masked(s)) is not None]


@pytest.mark.skipif(find_compiler() is None, reason=NEEDS_COMPILER)
def test_kernels_of_masked_functions(tmp_path: Path) -> None:
    made = [k for f in masked((60, 134, 7)) for k in kernels(f, "cpu", 2, 0)]
    assert len(made) >= 4
    told = run("cpu", made, tmp_path)
    assert not told, "\n".join(told)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("seed", range(10_000, 10_200, 25))
def test_kernels_of_hundreds_of_masked_functions(target: str, seed: int, tmp_path: Path) -> None:
    if target == "cpu" and find_compiler() is None:
        pytest.skip(NEEDS_COMPILER)
    made = [k for f in masked(range(seed, seed + 25)) for k in kernels(f, target, 2, 2)]
    told = run(target, made, tmp_path)
    assert not told, "\n".join(told)


# Loads leave 0 in the lanes beyond an end, where these are infinite or undefined.
BEYOND = """
(1 / x).sum(-1)
torch.log(x.abs()).sum(-1)
(x / x.abs()).sum(-1)
(y / x).amax(-1)
torch.rsqrt(x.abs()).mean(-1)
(x / x).prod(-1)
torch.log(x.abs()).amin(-1)
(1 / x) @ w
torch.log(x.abs()) @ w
(torch.log(x.abs()).softmax(-1)) @ w
(1 / x).cumsum(-1)
(x / x.abs()).cumsum(-1)
torch.where(x > 0, 1 / x, 0.0).sum(-1)
torch.where(p, 1 / x, -inf).amax(-1)
torch.where(p, torch.log(x.abs()), -inf).softmax(-1).nan_to_num(0.0)
torch.where(p, 1 / x, -inf).logsumexp(-1)
torch.where(torch.isnan(torch.where(p, x, -inf).softmax(-1)), 0.0, torch.where(p, x, -inf).softmax(-1)) @ w
(x * torch.rsqrt((x * x).mean(-1, keepdim=True))).sum(0)
(x / x.norm(dim=-1, keepdim=True)) @ w
((1 / x) - (1 / x).mean(-1, keepdim=True)).square().mean(-1)
(1 / x).var(-1)
torch.isnan(0 * (1 / x)).sum(-1)
torch.isinf(1 / x).any(-1)
(x == x).all(-1)
(x != 0).all(-1)
(x / x.sum(-1, keepdim=True)).amax(0)
(x / x.amax(0, keepdim=True)).sum(-1)
(1 / x).T @ (1 / x)
((1 / x) * p).sum(0)
torch.exp(1 / x - (1 / x).amax(-1, keepdim=True)).sum(-1)
torch.remainder(y, x).sum(-1)
torch.floor(y / x).sum(-1)
(y / x).abs().amax((0, 1))
(n // m).sum(-1)
(n % m).amax(-1)
(n / m).sum(-1)
F.pad(1 / x, (2, 1)).sum(-1)
torch.cat([1 / x, torch.log(x.abs())], -1).sum(-1)
(1 / x)[:, 1:].sum(-1)
(1 / x).roll(1, -1) @ w
F.layer_norm(1 / x, (7,))
F.softplus(-1 / x).sum(-1)
torch.where(x > 0, torch.sqrt(x), 1 / x).amin(0)
""".strip().splitlines()


def beyond(seed: int) -> Iterator[Function]:
    """Functions that have no value, or an infinite one, where their inputs are 0, which these inputs are not."""
    g = torch.Generator().manual_seed(seed)
    for n, text in enumerate(BEYOND):
        x = torch.randn(5, 7, generator=g)
        given = {"x": torch.where(x.abs() < 0.1, 1.0, x), "y": torch.randn(5, 7, generator=g)}
        given |= {"w": torch.randn(7, 6, generator=g), "p": torch.rand(5, 7, generator=g) > 0.4}
        given |= {
            "n": torch.randint(-9, 9, (5, 7), generator=g).int(),
            "m": torch.randint(1, 5, (5, 7), generator=g).int(),
        }
        used = {name: t for name, t in given.items() if re.search(rf"\b{name}\b", text)}
        yield Function(n, (f"z = {text}",), ("z",), used)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "sm_90"])
def test_what_is_undefined_beyond_an_end_stays_there(target: str, tmp_path: Path) -> None:
    if target == "cpu" and find_compiler() is None:
        pytest.skip(NEEDS_COMPILER)
    made = [k for f in beyond(3) for k in kernels(f, target, 3, 2)]
    assert len(made) > 100
    told = run(target, made, tmp_path)
    assert not told, "\n".join(told)


# What is stored between kernels


def buffers(function: torch_functions.Fn, *inputs: torch.Tensor) -> set[DType]:
    """The types of all buffers of all plans, also of those that gain nothing by it."""
    p, bounds = trace(function, inputs, name="f"), replace(WIDE, off=frozenset({"once", "worse"}))
    return {b.dtype for c in generate(task(p), bounds).candidates for b in c.sgraph.buffers}


X = torch.linspace(-2, 2, 24).reshape(6, 4)


def test_what_a_comparison_reads_is_not_stored_as_a_truth_value() -> None:
    assert buffers(lambda x: F.pad(torch.tanh(x), (1, 1)) > 0, X) == {DType.FLOAT32}
    assert buffers(lambda x: (torch.tanh(x).T > 0, x * 2), X.half()) == {DType.FLOAT16}
    assert buffers(lambda x: (torch.tanh(x) * 9).to(torch.int8), X) == {DType.FLOAT32, DType.INT8}


def test_a_buffer_holds_what_is_computed_from_it() -> None:
    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = F.pad(torch.tanh(x), (1, 1))
        return (y > 0).half(), y.exp()

    assert DType.FLOAT32 in buffers(two, X)
    # 300 and 301 are one number in bfloat16
    found = buffers(lambda n: ((n * 300).flip(0) + n).to(torch.bfloat16), torch.arange(8).to(torch.int32))
    assert found == {DType.FLOAT32}


# What is read


def read(functions: Sequence[Function]) -> list[str]:
    """What is neither refused nor what torch computes."""
    import torch_op_db as db

    def sample(place: int, f: Function) -> db.Sample:
        return db.Sample("f", torch.float32, place, tuple(f.inputs.values()), lambda tensors: f.call(*tensors))

    given = [sample(n, f) for n, f in enumerate(functions)]
    found = db.outcomes(given)
    assert sum(o.status == db.EQUAL for o in found) > len(found) / 2
    return [f"{functions[o.index]}{o.status}: {o.detail}" for o in found if o.status in db.BAD and not _cast(o.detail)]


def _cast(detail: str) -> bool:
    """Whether it is a NaN that was made a whole number, which is not defined, or a number by 0, whose sign is not."""
    signs = "np.float64(inf) for np.float64(-inf)", "np.float64(-inf) for np.float64(inf)"
    return bool(re.search(r"np.float64\(nan\) for np.float64\(-?[\d.]", detail)) or any(s in detail for s in signs)


def wide(seeds: Sequence[int]) -> list[Function]:
    return [f for s in seeds if (f := torch_functions.wide(s)) is not None]


def test_random_functions_are_read_as_what_they_are() -> None:
    told = read(wide(range(24)))
    assert not told, "\n".join(told)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20_000, 22_000, 200))
def test_thousands_of_functions_are_read_as_what_they_are(seed: int) -> None:
    told = read(wide(range(seed, seed + 200)))
    assert not told, "\n".join(told)


# At other sizes than the example's

SIZED = ((2, 9), (8, 3), (5, 5), (1, 4), (4, 1), (1, 1), (9, 2))


def apart(f: Function) -> str:
    """Where a program, traced with sizes that are symbols, is not its function; nothing where it is refused."""
    sizes = {name: Dim(name, min=1, max=64) for name in "MN"}
    given = {n: {d: sizes[s] for d, s in enumerate(NAMED[n]) if s is not None} or None for n in f.inputs}
    if not any(given.values()):
        return ""
    try:
        p = trace(f.call, tuple(f.inputs.values()), name="f", dynamic_shapes=given)
    except UnsupportedError:
        return ""
    names = [t.name for t in p.inputs if t.name not in p.weights]
    for m, n in SIZED:
        tensors = at_sizes(f, {"M": m, "N": n})
        inputs = dict(zip(names, (t.numpy() for t in tensors.values()), strict=True))
        binding = bind([t for t in p.inputs if t.name in inputs], {name: a.shape for name, a in inputs.items()})
        if not all(r.low <= binding[s] <= r.high for s, r in p.ranges.items()):
            continue
        try:
            made = f.call(*tensors.values())
        except (IndexError, RuntimeError):
            # A place that data give is outside at this size: the program assumes that there is none (decision 83).
            if PLACES_ASSUMED in assumptions(p):
                continue
            raise
        found = evaluate(p, inputs)
        for name, want in zip(p.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            exact = want.double().numpy()
            scale = np.abs(exact[np.isfinite(exact)]).max(initial=1e-30) * TOLERANCE.get(p.tensor(name).dtype, 2e-6)
            same = found[name].shape == exact.shape
            if not same or (np.abs(found[name] - exact)[np.isfinite(exact)] > scale).any():
                return f"{f}{p}at {m}, {n}: {name} is {found[name]} and not {exact}"
    return ""


def test_random_functions_are_right_at_other_sizes() -> None:
    told = [t for seed in (2, 5, 9, 24) if (f := torch_functions.sized(seed)) is not None and (t := apart(f))]
    assert not told, "\n".join(told)


def test_sizes_that_a_decomposition_compares_stay_symbols() -> None:
    sizes = {0: Dim("M", min=1, max=64), 1: Dim("N", min=1, max=64)}
    p = trace(lambda y: torch.diag_embed(y.sign()), (torch.ones(3, 7),), name="f", dynamic_shapes=(sizes,))
    assert p.ranges.keys() == {"M", "N"}
    assert [str(e) for e in p.inputs[0].shape] == ["M", "N"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30_000, 30_400, 100))
def test_hundreds_of_functions_are_right_at_other_sizes(seed: int) -> None:
    drawn = map(torch_functions.sized, range(seed, seed + 100))
    told = [t for f in drawn if f is not None and (t := apart(f))]
    assert not told, "\n".join(told)


def test_a_size_that_is_squeezed_is_not_one() -> None:
    size = {"x": {0: Dim("M", min=1, max=64)}}
    for dim, least in ((0, 2), (1, 1), (None, 2)):
        squeezed = [torch.ones(4, 1)]
        p = trace(lambda x, d=dim: x.squeeze() if d is None else x.squeeze(d), squeezed, dynamic_shapes=size)
        assert p.ranges["M"].low == least


def test_a_size_that_may_be_another_is_not_broadcast() -> None:
    size = {"x": {0: Dim("M", min=1, max=64), 1: Dim("N", min=1, max=64)}}
    with pytest.raises(UnsupportedError, match="depends on the sizes"):
        trace(lambda x: torch.broadcast_to(x.diagonal(-1), (5, 4)), [torch.ones(5, 4)], dynamic_shapes=size)


def test_a_slice_as_long_at_every_size_lies_within_the_dimension() -> None:
    size = {"x": {0: Dim("M", min=1, max=64)}}
    for place in (slice(3), slice(1, 4), slice(0, 4, 2), 3, -4):
        p = trace(lambda x, place=place: x.tile(2)[place] * 2, [torch.ones(6)], dynamic_shapes=size)
        assert p.ranges["M"].low == 2


def test_a_remainder_of_much_larger_numbers_is_no_misreading() -> None:
    p = trace(lambda x: torch.fmod(torch.exp(x), x.mT), [torch.tensor([[0.5], [-0.25], [1.5]])])
    assert p.conformance is not None
    near = [torch.tensor(0.25, dtype=torch.float64)]  # a threshold decides, and 1 + exp(-17) is rounded
    assert trace(lambda x: F.softplus(x, beta=1, threshold=1), near).conformance is not None


def test_functions_are_drawn_alike() -> None:
    assert list(map(str, masked(range(20)))) == list(map(str, masked(range(20))))
    assert list(map(str, wide(range(20)))) == list(map(str, wide(range(20))))


def test_how_many_parts_there_are_is_the_same_at_every_size() -> None:
    size = {"x": {0: Dim("M", min=1, max=64), 1: Dim("N", min=1, max=64)}}
    with pytest.raises(UnsupportedError, match="into how many parts"):
        trace(lambda x: x.diagonal(0).split(3, 0)[-1], [torch.ones(7, 4)], dynamic_shapes=size)
