"""CUDA graphs of emitted modules: what is captured and replayed, with a stand-in for torch.cuda that records.

The launches are library products, which run on a CPU: so values show what a replay reads and writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sgraph_samples as samples
import torch
from sgraph_samples import F32, SUM, at, sym

from prism.backends.loading import load_module
from prism.backends.triton.emit import emit_module
from prism.program.index import Axis
from prism.program.nodes import Tensor
from prism.sgraph.config import Config
from prism.sgraph.nodes import Accumulate, Contract, Grid, Kernel, Load, Loop, LoopRole, SGraph, Store

N = 8


def chain(name: str = "chain") -> SGraph:
    """z = (x w) v, two launches."""
    a, b, c, d = (Axis(n, N) for n in "abcd")

    def product(kernel: str, left: str, right: str, out: str, axes: tuple[Axis, Axis, Axis]) -> Kernel:
        r, k, n = axes
        inner = (
            Load("l", left, at(r, k)),
            Load("m", right, at(k, n)),
            Contract("p", k, "l", "m"),
            Accumulate("s", SUM, "p"),
        )
        roles = (
            (r, Grid(sym(f"T_{r}_{kernel}"))),
            (n, Grid(sym(f"T_{n}_{kernel}"))),
            (k, LoopRole(sym(f"T_{k}_{kernel}"))),
        )
        return Kernel(kernel, roles, (Loop(k, inner), Store(out, at(r, n), "s")))

    tensors = {n: Tensor(n, (N, N), F32) for n in "xwvyz"}
    kernels = (product("first", "x", "w", "y", (a, b, c)), product("second", "y", "v", "z", (a, c, d)))
    return SGraph(name, tuple(tensors[n] for n in "xwv"), (tensors["y"],), (tensors["z"],), kernels)


class OnDevice(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = property(lambda self: True)


def tensor(seed: int, n: int = N) -> Any:
    return torch.randn(n, n, generator=torch.Generator().manual_seed(seed)).as_subclass(OnDevice)


@dataclass
class Graph:
    """What was launched while it was captured."""

    recorded: list[Callable[[], None]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def replay(self) -> None:
        self.log.append("replay")
        for launch in self.recorded:
            launch()


@dataclass
class Line:
    name: str
    log: list[str]

    def wait_stream(self, other: Line) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class Cuda:
    """The part of torch.cuda that is used; launches while a graph is captured are kept and not run, as there."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.now = Line("main", self.log)
        self.capturing: Graph | None = None

    def is_available(self) -> bool:
        return True

    def Stream(self) -> Line:
        return Line("side", self.log)

    def current_stream(self) -> Line:
        return self.now

    def CUDAGraph(self) -> Graph:
        return Graph(log=self.log)

    @contextmanager
    def stream(self, stream: Line) -> Iterator[None]:
        before, self.now = self.now, stream
        yield
        self.now = before

    @contextmanager
    def graph(self, graph: Graph) -> Iterator[None]:
        self.log.append("capture")
        self.capturing = graph
        yield
        self.capturing = None
        self.log.append("captured")

    @contextmanager
    def device(self, _: Any) -> Iterator[None]:
        yield

    device_of = device

    def launch(self, name: str, work: Callable[[], None]) -> None:
        self.log.append(f"{name} on {self.now.name}")
        if self.capturing is None:
            work()
        else:
            self.capturing.recorded.append(work)


class Torch:
    """torch, with another torch.cuda."""

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def config(g: SGraph) -> dict[str, Any]:
    return Config({s.name: 16 for s in g.symbols}, {}, {}).having(library=[k.name for k in g.kernels]).encode()


def module(folder: Path, cuda: Cuda, g: SGraph) -> ModuleType:
    path = folder / f"{g.name}.py"
    path.write_text(emit_module(g, formula="z = x w v", configs={}).text)
    made = load_module(path, apart=True)
    made.torch = Torch(cuda)  # type: ignore[attr-defined]
    call = made.LibraryProduct.__call__

    def launched(self: Any, *args: Any) -> None:
        cuda.launch(self.__name__, lambda: call(self, *args))

    made.LibraryProduct.__call__ = launched
    return made


@pytest.fixture
def cuda() -> Cuda:
    return Cuda()


def test_launches_run_once_aside_and_are_then_captured(tmp_path: Path, cuda: Cuda) -> None:
    g = chain()
    made = module(tmp_path, cuda, g)
    x, w, v = tensor(0), tensor(1), tensor(2)
    replay = made.capture(x, w, v, config=config(g))
    warm_up = ["first on side", "second on side"]
    assert cuda.log == [
        "side waits for main",
        *warm_up,
        "main waits for side",
        "capture",
        "first on main",
        "second on main",
        "captured",
    ]
    cuda.log.clear()
    out = replay(x, w, v)
    torch.testing.assert_close(torch.Tensor(out), torch.Tensor(x @ w @ v))
    assert cuda.log == ["replay"]


def test_a_replay_reads_its_own_copies_and_overwrites_its_outputs(tmp_path: Path, cuda: Cuda) -> None:
    g = chain()
    made = module(tmp_path, cuda, g)
    x, w, v = tensor(0), tensor(1), tensor(2)
    replay = made.capture(x, w, v, config=config(g))
    before = [t.clone() for t in (x, w, v)]
    first = replay(x, w, v)
    held = first.clone()
    new = tensor(3)
    second = replay(new)
    assert second.data_ptr() == first.data_ptr()
    torch.testing.assert_close(torch.Tensor(second), torch.Tensor(new @ w @ v))
    assert not torch.equal(held, second)
    # The caller's tensors are as they were, and what he does to them is not seen.
    assert all(torch.equal(a, b) for a, b in zip((x, w, v), before, strict=True))
    w.zero_()
    torch.testing.assert_close(torch.Tensor(replay(x, None, v)), torch.Tensor(x @ before[1] @ v))


def test_kept_arguments_are_read_where_they_are(tmp_path: Path, cuda: Cuda) -> None:
    g = chain()
    made = module(tmp_path, cuda, g)
    x, w, v = tensor(0), tensor(1), tensor(2)
    replay = made.capture(x, w, v, keep=(1, 2), config=config(g))
    w.mul_(2.0)
    torch.testing.assert_close(torch.Tensor(replay(x, w)), torch.Tensor(x @ w @ v))
    with pytest.raises(ValueError, match="argument 1 is read where it was at the capture"):
        replay(x, w.clone())


def test_arguments_that_do_not_fit_are_refused(tmp_path: Path, cuda: Cuda) -> None:
    g = chain()
    replay = module(tmp_path, cuda, g).capture(tensor(0), tensor(1), tensor(2), config=config(g))
    # Without a look at the shape a copy would broadcast.
    with pytest.raises(ValueError, match=r"argument 0 must be torch\.float32 \(8, 8\) as at the capture.*\(1, 1\)"):
        replay(tensor(0, 1))
    with pytest.raises(ValueError, match="float64"):
        replay(tensor(0).double())
    with pytest.raises(ValueError, match="takes 3 arguments, not 4"):
        replay(*(tensor(n) for n in range(4)))


def test_without_cuda_it_says_so(tmp_path: Path) -> None:
    g = chain()
    path = tmp_path / "chain.py"
    path.write_text(emit_module(g, formula="", configs={}).text)
    made = load_module(path, apart=True)
    with pytest.raises(RuntimeError, match="needs arguments on a CUDA device; call chain instead"):
        made.capture(*(torch.zeros(N, N) for _ in range(3)), config=config(g))
    with pytest.raises(RuntimeError, match="CUDA"):
        made.capture()


def test_one_launch_is_captured_too(tmp_path: Path, cuda: Cuda) -> None:
    g = samples.matmul(m=N, k=N, n=N).sgraph
    x, w = tensor(0), tensor(1)
    replay = module(tmp_path, cuda, g).capture(x, w, config=config(g))
    before = len(cuda.log)
    assert torch.allclose(replay(tensor(2)), torch.as_tensor(tensor(2)) @ torch.as_tensor(w))
    assert cuda.log[before:] == ["replay"]


def test_a_name_is_not_taken_twice() -> None:
    text = emit_module(chain("capture"), formula="", configs={}).text
    assert "def capture_graph(*inputs" in text
    assert text.count("def capture(") == 1
    assert "call capture instead" in text
