"""Independent launches on several streams: what waits for what, when it pays, that a graph keeps the order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import sgraph_samples as samples
import torch
from finalist import finalist
from sgraph_samples import F32, at, op, sym
from short_calls import config_of
from test_capture import OnDevice, Torch, chain

from prism.backends.loading import load_module
from prism.backends.triton.emit import emit_module
from prism.bench.prepare import module_facts
from prism.cost.device import device
from prism.cost.model import Model
from prism.cost.streams import CROSSING_S, MOST_STREAMS, Demand, finished, placed
from prism.errors import BackendError
from prism.instantiate.space import Space
from prism.instantiate.study import Best
from prism.program.index import Axis
from prism.program.nodes import Tensor
from prism.sgraph import spec
from prism.sgraph.compose import Part, compose
from prism.sgraph.config import Config
from prism.sgraph.folding import folds
from prism.sgraph.launches import apart, waits
from prism.sgraph.nodes import Grid, Kernel, Load, SGraph, Store

US = 1e-6


def product(m: int, k: int, n: int, left: str, right: str, out: str) -> Part:
    return Part(samples.matmul(F32, m=m, k=k, n=n).sgraph, {"x": left, "w": right, "y": out})


def total(m: int, n: int, left: str, right: str, out: str) -> Part:
    rows, columns = Axis("m", m), Axis("n", n)
    body = (Load("a", "a", at(rows, columns)), Load("b", "b", at(rows, columns)), op("t", "add", "a", "b"),
            Store("c", at(rows, columns), "t"))  # fmt: skip
    kernel = Kernel("add_kernel", ((rows, Grid(sym("T_r"))), (columns, Grid(sym("T_c")))), body)
    tensors = {name: Tensor(name, (m, n), F32) for name in "abc"}
    g = SGraph("total", (tensors["a"], tensors["b"]), (), (tensors["c"],), (kernel,))
    return Part(g, {"a": left, "b": right, "c": out})


def branches(m: int = 8, k: int = 24, n: int = 16) -> SGraph:
    """z = x w (s t) and, beside it, u v: two branches of different shapes, of which one has two launches."""
    shapes = {"x": (m, k), "w": (k, n), "u": (m, 2 * k), "v": (2 * k, k), "t": (k, n)}
    parts = [
        product(m, k, n, "x", "w", "one"),
        product(m, 2 * k, k, "u", "v", "two"),
        product(m, k, n, "two", "t", "three"),
        total(m, n, "one", "three", "z"),
    ]
    inputs = [Tensor(name, shape, F32) for name, shape in shapes.items()]
    return compose("branches", inputs, [Tensor("z", (m, n), F32)], parts).sgraph


def two_splits() -> SGraph:
    """y + z of two split products, whose second stages can both be folded."""
    own = samples.split_k_matmul().sgraph
    inputs = [Tensor(n, t.shape, F32) for t in own.inputs for n in (t.name, f"{t.name}2")]
    parts = [
        Part(own, {"x": "x", "w": "w", "y": "y1"}),
        Part(own, {"x": "x2", "w": "w2", "y": "y2"}),
        total(20, 24, "y1", "y2", "z"),
    ]
    return compose("two_splits", inputs, [Tensor("z", (20, 24), F32)], parts).sgraph


# What waits for what.


def test_launches_wait_for_what_they_read_and_for_nothing_twice() -> None:
    g = branches()
    names = [x.name for x in g.launches]
    first, second, third, last = names
    assert waits(g) == {first: (), second: (), third: (second,), last: (first, third)}
    assert apart(waits(g))
    assert waits(chain()) == {"first": (), "second": ("first",)}
    assert not apart(waits(chain()))
    assert not apart(waits(samples.matmul().sgraph))


def test_what_is_overwritten_is_waited_for() -> None:
    a = Axis("a", 8)

    def copy(name: str, source: str, out: str) -> Kernel:
        return Kernel(name, ((a, Grid(sym(f"T_{name}"))),), (Load("v", source, at(a)), Store(out, at(a), "v")))

    tensors = {n: Tensor(n, (8,), F32) for n in "xyz"}
    # The second one stores what the first one loads, the third one what the second one stores.
    kernels = (copy("p", "x", "y"), copy("q", "y", "z"), copy("r", "x", "y"), copy("s", "x", "z"))
    g = SGraph("over", (tensors["x"],), (tensors["y"],), (tensors["z"],), kernels)
    assert waits(g) == {"p": (), "q": ("p",), "r": ("q",), "s": ("q",)}


def test_a_folded_second_stage_is_waited_for_as_its_split() -> None:
    g = two_splits()
    found = folds(g)
    assert len(found) == 2
    (one, two), (a, b) = [f.split for f in found.values()], found
    (last,) = {x.name for x in g.launches} - {one, two, a, b}
    assert waits(g) == {one: (), a: (one,), two: (), b: (two,), last: (a, b)}
    assert waits(g, [a]) == {one: (), two: (), b: (two,), last: (one, b)}
    assert waits(g, [a, b]) == {one: (), two: (), last: (one, two)}


# When it pays.

AFTER: dict[str, tuple[str, ...]] = {"a": (), "b": (), "c": ("b",), "d": ("a", "c")}


def test_launches_are_done_when_a_schedule_by_hand_is() -> None:
    small = {n: Demand(3 * US, 0.25) for n in "abcd"}
    # One after the other: each 2 us of overhead and 3 of its own.
    assert finished(AFTER, small, {}, 2 * US) == pytest.approx(20 * US)
    # Beside a (2 + 3) run b and c: 1 us to cross, twice 5; then d, which waits for a crossing.
    assert CROSSING_S == 1 * US
    assert finished(AFTER, small, {"b": 1, "c": 1}, 2 * US) == pytest.approx((1 + 10 + 1 + 5) * US)
    # The other way round nobody waits for a crossing, and a last launch that is aside is joined.
    assert finished(AFTER, small, {"a": 1}, 2 * US) == pytest.approx(15 * US)
    assert finished(AFTER, small, {"a": 1, "d": 1}, 2 * US) == pytest.approx((10 + 1 + 5 + 1) * US)
    # What fills the device goes at half its pace beside another that does, from 3 us to 7: then b has a third left.
    full = {n: Demand(3 * US, 1.0) for n in "abcd"}
    got = finished({"a": (), "b": ()}, full, {"b": 1}, 2 * US)
    assert got == pytest.approx((2 + 6 + 1) * US)
    assert finished({"a": (), "b": ()}, full, {}, 0.0) == pytest.approx(6 * US)


def test_what_is_apart_gets_streams_where_it_is_small() -> None:
    small = {n: Demand(3 * US, 0.25) for n in "abcd"}
    chosen = placed(AFTER, small, 2 * US)
    assert set(chosen.values()) == {1}
    ways = [dict(zip("abcd", way, strict=True)) for way in itertools.product(range(3), repeat=4)]
    least = min(finished(AFTER, small, way, 2 * US) for way in ways)
    assert finished(AFTER, small, chosen, 2 * US) == pytest.approx(least)
    assert least < 0.9 * finished(AFTER, small, {}, 2 * US)
    # What fills the device has nothing to gain but overhead, which is a small part of it.
    assert placed(AFTER, {n: Demand(300 * US, 1.0) for n in "abcd"}, 2 * US) == {}
    assert placed({"a": (), "b": ("a",), "c": ("b",)}, small, 2 * US) == {}
    many = dict.fromkeys("abcdefgh", ())
    found = placed(many, {n: Demand(20 * US, 0.1) for n in many}, 2 * US)
    assert max(found.values()) == MOST_STREAMS - 1
    every = [dict(zip("abcdefgh", s, strict=True)) for s in itertools.product(range(2), repeat=8)]
    least = min(finished(many, {n: Demand(20 * US, 0.1) for n in many}, s, 2 * US) for s in every)
    assert finished(many, {n: Demand(20 * US, 0.1) for n in many}, found, 2 * US) <= least


@pytest.mark.parametrize("seed", range(20))
def test_a_choice_is_never_slower_than_one_stream(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [f"n{i}" for i in range(7)]
    after = {n: tuple(m for m in names[:i] if rng.random() < 0.3) for i, n in enumerate(names)}
    demands = {n: Demand(float(rng.uniform(1, 20)) * US, float(rng.uniform(0.05, 1))) for n in names}
    chosen = placed(after, demands, 2 * US)
    alone = finished(after, demands, {}, 2 * US)
    assert alone == pytest.approx(sum(d.seconds + 2 * US for d in demands.values()))
    assert finished(after, demands, chosen, 2 * US) <= alone
    # No schedule beats the longest chain of launches, or the work.
    path: dict[str, float] = {}
    for n in names:
        path[n] = max((path[m] for m in after[n]), default=0.0) + demands[n].seconds + 2 * US
    work = sum(d.seconds * d.share for d in demands.values())
    assert finished(after, demands, chosen, 2 * US) >= max(*path.values(), work) - 1e-12


def test_the_model_gives_small_branches_streams_and_large_ones_none() -> None:
    target = device("sm_90")
    for shape, pays in (((16, 512, 256), True), ((4096, 4096, 4096), False)):
        g = branches(*shape)
        model = Model(g, target, {})
        (config,) = Space(g, target, {}).best(model, 1)
        beside = model.on_streams(config)
        assert (beside is not None) == pays
        if beside is None:
            continue
        assert model.seconds(beside) < 0.98 * model.seconds(config)
        # What a launch takes by itself is said as before.
        assert model.estimate(beside).per_kernel == model.estimate(config).per_kernel
        assert beside.having(streams={}) == config
        assert model.on_streams(beside) == beside
    split = two_splits()
    model = Model(split, target, {})
    (config,) = Space(split, target, {}).best(model, 1)
    folded = config.having(folded=frozenset(folds(split)))
    assert model.on_streams(folded) is not None


def test_the_best_of_a_study_get_a_twin() -> None:
    f = finalist(branches(16, 512, 256), device("sm_90"))
    for config in f.candidate.points[:2]:
        best = Best(0, config, f.model.seconds(config), ())
        (twin,) = f.beside(best)
        assert {**twin.config.encode(), "streams": {}} == {**config.encode(), "streams": {}}
        assert twin.config.numbers("streams")
        assert twin.seconds < best.seconds
        assert twin.config.key() != config.key()
    f = finalist(samples.matmul(F32, m=16, k=512, n=256).sgraph, device("sm_90"))
    assert f.beside(Best(0, f.candidate.points[0], 1e-6, ())) == []


# What is emitted.


def config(g: SGraph, streams: Mapping[str, int] | None = None) -> Config:
    names = [x.name for x in g.launches]
    four, two = dict.fromkeys(names, 4), dict.fromkeys(names, 2)
    return Config({s.name: 16 for s in g.symbols}, four, two).having(streams=streams or {})


def test_modules_say_what_is_beside_what() -> None:
    g = branches()
    _, second, third, _ = (x.name for x in g.launches)
    chosen = config(g, {third: 1, second: 1})
    text = emit_module(g, formula="f", configs={"sm_90": [chosen]}).text
    assert f'"{third}": ("{second}",),' in text
    assert "@_on_streams\ndef launches(" in text
    assert module_facts(text)[0] == [chosen.encode()]
    assert max(map(len, text[text.index("AFTER = {") : text.index("def launches(")].splitlines())) <= 120
    assert config_of(chosen.flat()) == chosen
    assert f"streams.{second}=1" in chosen.key()
    assert "streams" not in config(g).encode()
    with pytest.raises(BackendError, match="there is no launch other"):
        emit_module(g, formula="f", configs={"sm_90": [config(g, {"other": 1})]})
    for alone in (chain(), samples.matmul().sgraph, samples.split_k_matmul().sgraph):
        assert "_on_streams" not in emit_module(alone, formula="f", configs={}).text
    spec.check(g)


# What a captured graph keeps.


@dataclass
class Node:
    """A launch in a graph, and the launches that it comes after."""

    name: str
    work: Callable[[], None]
    after: frozenset[int]


@dataclass
class Event:
    """A point of a stream."""

    frontier: frozenset[int] | None


@dataclass
class Graph:
    """What was captured."""

    nodes: list[Node] = field(default_factory=list)

    def orders(self) -> Iterator[list[int]]:
        """Every order in which a device may run the launches."""

        def extend(done: list[int]) -> Iterator[list[int]]:
            if len(done) == len(self.nodes):
                yield done
            for n, node in enumerate(self.nodes):
                if n not in done and node.after <= set(done):
                    yield from extend([*done, n])

        yield from extend([])

    def run(self, order: list[int]) -> None:
        for n in order:
            self.nodes[n].work()

    def replay(self) -> None:
        self.run(next(self.orders()))


class Line:
    """A stream: what its next launch comes after; None where it takes no part in a capture."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self.device = "cuda"
        self.frontier: frozenset[int] | None = None

    def wait_stream(self, other: Line) -> None:
        self.wait_event(other.record_event())

    def record_event(self) -> Event:
        return Event(self.frontier)

    def wait_event(self, event: Event) -> None:
        if self.cuda.capturing is not None:
            assert event.frontier is not None, "an event from outside of the capture"
            self.frontier = (self.frontier or frozenset()) | event.frontier


class Cuda:
    """The part of torch.cuda that is used, with what CUDA insists on during a capture."""

    def __init__(self) -> None:
        self.now = Line(self)
        self.capturing: Graph | None = None
        self.graphs: list[Graph] = []
        self.lines: list[Line] = []
        self.written: list[Any] = []

    def is_available(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.capturing is not None and self.now.frontier is not None

    def Stream(self, device: Any = None) -> Line:
        self.lines.append(Line(self))
        return self.lines[-1]

    def current_stream(self, device: Any = None) -> Line:
        return self.now

    def CUDAGraph(self) -> Graph:
        self.graphs.append(Graph())
        return self.graphs[-1]

    @contextmanager
    def stream(self, stream: Line) -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    @contextmanager
    def graph(self, graph: Graph) -> Iterator[None]:
        before, self.now = self.now, Line(self)
        self.capturing, self.now.frontier = graph, frozenset()
        yield
        joined = set(self.now.frontier or ())
        for n in reversed(range(len(graph.nodes))):
            joined |= graph.nodes[n].after if n in joined else set()
        assert joined == set(range(len(graph.nodes))), "the capture ends with work that was not joined"
        self.capturing, self.now = None, before

    @contextmanager
    def device(self, _: Any) -> Iterator[None]:
        yield

    device_of = device

    def launch(self, name: str, work: Callable[[], None]) -> None:
        if self.capturing is None:
            work()
            return
        assert self.now.frontier is not None, f"{name} is launched on a stream that the capture does not know"
        self.capturing.nodes.append(Node(name, work, self.now.frontier))
        self.now.frontier = frozenset({len(self.capturing.nodes) - 1})


def loaded(folder: Path, cuda: Cuda, g: SGraph, change: Callable[[str], str] = lambda text: text) -> ModuleType:
    """The module with launches that compute by torch, on the stand-in for torch.cuda."""
    path = folder / f"{g.name}.py"
    path.write_text(change(emit_module(g, formula="f", configs={}).text))
    made = load_module(path, apart=True)
    made.torch = Torch(cuda)  # type: ignore[attr-defined, arg-type]
    computed: dict[str, Callable[..., torch.Tensor]] = {}
    for x in g.launches:
        computed[x.name] = torch.add if "_add_" in x.name else torch.mm

    class Kernel:
        def __init__(self, name: str) -> None:
            self.__name__ = name

        def __getitem__(self, grid: Any) -> Callable[..., None]:
            def call(a: Any, b: Any, out: Any, *_: Any, **__: Any) -> None:
                cuda.written.append(out)
                if computed[self.__name__] is torch.mm and a.shape[1] != b.shape[0]:
                    a, b = b, a
                cuda.launch(self.__name__, lambda: out.copy_(computed[self.__name__](a, b)))

            return call

    for name in computed:
        setattr(made, name, Kernel(name))
    return made


def tensors(g: SGraph) -> list[Any]:
    shapes = [tuple(int(e) for e in t.shape) for t in g.inputs]
    return [
        torch.randn(*s, generator=torch.Generator().manual_seed(n), dtype=torch.float32).as_subclass(OnDevice)
        for n, s in enumerate(shapes)
    ]


def spoilt(cuda: Cuda, made: ModuleType, given: list[Any], chosen: Config) -> tuple[int, list[str]]:
    """How many orders a device may take, and those in which the result is wrong."""
    replay = made.capture(*given, config=chosen.encode())
    x, w, u, v, t = (torch.Tensor(a) for a in given)
    out, graph = replay(), cuda.graphs[-1]
    wrong, orders = [], list(graph.orders())
    for order in orders:
        for written in cuda.written:
            torch.Tensor(written).fill_(float("nan"))
        graph.run(order)
        if not torch.allclose(torch.Tensor(out), x @ w + u @ v @ t, atol=1e-4):
            wrong.append(" ".join(graph.nodes[n].name for n in order))
    return len(orders), wrong


def every(g: SGraph) -> list[dict[str, int]]:
    """Streams for the launches in all ways, up to three of them."""
    names = [x.name for x in g.launches]
    return [{n: s for n, s in zip(names, way, strict=True) if s} for way in itertools.product(range(3), repeat=4)]


def test_any_streams_keep_the_order_of_what_depends_on_each_other(tmp_path: Path) -> None:
    g = branches()
    cuda = Cuda()
    made, given = loaded(tmp_path, cuda, g), tensors(g)
    seen = set()
    for streams in every(g):
        many, wrong = spoilt(cuda, made, given, config(g, streams))
        assert not wrong, (streams, wrong)
        seen.add(many)
    # One stream has one order; with the first launch aside it may come before, between and after the other two.
    assert (min(seen), max(seen)) == (1, 3)


def test_a_wait_that_is_missing_shows(tmp_path: Path) -> None:
    g = branches()
    first, second, third, _ = (x.name for x in g.launches)
    for n, lost in enumerate((f'("{second}",)', f'("{first}", "{third}")')):
        cuda = Cuda()
        folder = tmp_path / str(n)
        folder.mkdir()
        made = loaded(folder, cuda, g, lambda text, lost=lost: text.replace(lost, "()"))  # type: ignore[misc]
        chosen = config(g, {third: 1} if n == 0 else {first: 1, second: 2, third: 2})
        assert spoilt(cuda, made, tensors(g), chosen)[1]


def test_what_is_not_joined_or_forked_shows(tmp_path: Path) -> None:
    g = branches()
    first = g.launches[0].name
    for n, (line, said) in enumerate(
        (("main.wait_stream(side)", "not joined"), ("own.wait_event(fork)", "does not know"))
    ):
        folder = tmp_path / str(n)
        folder.mkdir()
        made = loaded(folder, Cuda(), g, lambda text, line=line: text.replace(line, "pass"))  # type: ignore[misc]
        # The last launch alone waits for no stream but its own.
        last = g.launches[3].name
        with pytest.raises(AssertionError, match=said):
            made.capture(*tensors(g), config=config(g, {last: 1} if n == 0 else {first: 1}).encode())


def test_without_a_capture_all_is_on_one_stream(tmp_path: Path) -> None:
    g = branches()
    cuda = Cuda()
    made, given = loaded(tmp_path, cuda, g), tensors(g)
    x, w, u, v, t = (torch.Tensor(a) for a in given)
    chosen = config(g, {g.launches[0].name: 1})
    got = made.branches(*given, config=chosen.encode())
    torch.testing.assert_close(torch.Tensor(got), x @ w + u @ v @ t)
    assert len(cuda.lines) == 0
    # In graphs the same ones, time after time.
    for _ in range(2):
        made.capture(*given, config=chosen.encode())
    assert len({id(x) for x in made._SIDES.values()}) == len(made._SIDES) == 2
    # On tensors that are nowhere, too, as they are compiled for.
    meta = [torch.empty(a.shape, device="meta") for a in given]
    out = torch.empty(8, 16, device="meta")
    assert [k.__name__ for k, *_ in made.launches(*meta, out, config=chosen.encode())] == [x.name for x in g.launches]


def test_folded_splits_count_apart_and_are_waited_for(tmp_path: Path) -> None:
    g = two_splits()
    found = folds(g)
    (one, two), (a, b) = [f.split for f in found.values()], found
    last = g.launches[-1].name
    path = tmp_path / "two_splits.py"
    path.write_text(emit_module(g, formula="f", configs={}).text)
    made = load_module(path, apart=True)
    cuda = Cuda()
    made.torch = Torch(cuda)  # type: ignore[attr-defined, arg-type]
    counts = torch.zeros(64, dtype=torch.int32)
    made._arrivals = lambda count, device: counts  # type: ignore[attr-defined]
    given = [torch.zeros([int(e) for e in t.shape]).as_subclass(OnDevice) for t in (*g.inputs, *g.outputs)]
    for folded, names in (((a, b), [one, two, last]), ((b,), [one, a, two, last]), ((), [one, a, two, b, last])):
        chosen = config(g, {two: 1, b: 1}).having(folded=frozenset(folded))
        symbols = {**chosen.symbols, **{s: 2 for s in chosen.symbols if s.startswith("S_")}}
        chosen = replace(chosen, symbols=symbols)
        graph = Graph()
        with cuda.graph(graph):
            for kernel, _, args, _ in made.launches(*given, config=chosen.encode()):
                cuda.launch(kernel.__name__, lambda: None)
                if len(folded) == 2 and kernel.__name__ in (one, two):
                    (own,) = [x for x in args if isinstance(x, torch.Tensor) and x.dtype == torch.int32]
                    # Four tiles each, of 16 bytes.
                    assert own.data_ptr() - counts.data_ptr() == (0 if kernel.__name__ == one else 16)
                    assert len(own) == 4
        nodes = {n.name: {graph.nodes[m].name for m in n.after} for n in graph.nodes}
        assert list(nodes) == names
        assert nodes[two] == set()
        assert nodes[last] == {one if a in folded else a, two if b in folded else b}
