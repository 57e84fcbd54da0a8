"""`prism.compile` and the backend of `torch.compile`: functions and modules by prism's kernels, gradients among it."""

from __future__ import annotations

import functools
import logging
import math
import re
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted_clock import scripted
from torch.utils.checkpoint import checkpoint

import prism
from prism.api import compiling
from prism.api.region_search import SearchBudget
from prism.api.time_limit import LEAST_S, MORE_TIME
from prism.backends.cpu.support import find_compiler
from prism.errors import NoImprovementError, UsageError, of_one_part
from prism.process.deadline import NEVER, Deadline

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [
    pytest.mark.usefixtures("unoptimised", "small_gate"),
    pytest.mark.skipif(find_compiler() is None, reason="there is no C++ compiler here"),
]
QUICK: dict[str, Any] = {
    "trials": 1,
    "budget": SearchBudget(max_sgraphs=1, max_families=8),
    "baselines": ["eager"],
    "target": "cpu",
}


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """Kernels are timed to be twice as fast; what the log says."""
    scripted(monkeypatch, {"eager": 2e-3, "kernels": 1e-3})
    log, handler = logging.getLogger("prism.compile"), BufferingHandler(1000)
    monkeypatch.setattr(log, "level", logging.INFO)
    log.addHandler(handler)
    yield lambda: [r.getMessage() for r in handler.buffer]
    log.removeHandler(handler)
    torch._dynamo.reset()


class Model(torch.nn.Module):
    """An embedding, which is no island, perhaps a norm and a product, noise, which is none either, a pointwise tail."""

    def __init__(self, *middle: torch.nn.Module) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 8)
        self.middle = torch.nn.Sequential(*middle)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Rows of twos, transposed."""
        x = self.middle(self.embedding(tokens))
        return (torch.sigmoid(self.dropout(x)) * 2).transpose(0, 1)


DEEP = (torch.nn.LayerNorm(8), torch.nn.Linear(8, 8))


@pytest.mark.parametrize("middle", [(), pytest.param(DEEP, marks=pytest.mark.slow)], ids=["tail", "all"])
def test_a_module_is_trained_by_kernels(faster: Callable[[], list[str]], middle: tuple[torch.nn.Module, ...]) -> None:
    torch.manual_seed(0)
    model, tokens = Model(*middle), torch.arange(6)

    def step(run: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, dict[str, Any]]:
        torch.manual_seed(1)
        model.zero_grad()
        found = run(tokens)
        torch.autograd.backward(found.square().sum())
        return found.detach(), {name: p.grad for name, p in model.named_parameters()}

    want, wanted = step(model)
    fast = prism.compile(model, **QUICK)
    for _ in range(2):
        found, gradients = step(fast)
        assert found.stride() == want.stride()
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(gradients, wanted)
    said = faster()
    assert sum("take 1/2.00 of the time" in line for line in said) >= 2, said


def test_sizes_vary_and_breaks_are_gone_round(faster: Callable[[], list[str]]) -> None:
    @prism.compile(dynamic=True, **QUICK)  # type: ignore[untyped-decorator]
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(x * 3) * x.shape[0]
        torch._dynamo.graph_break()
        return torch.sort(y)[1]

    for rows in (4, 6, 4):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(function(x), torch.sort(torch.sigmoid(x * 3) * rows)[1])
    kernels = sum("of the time" in line for line in faster())
    assert kernels == 2, "an island of two sizes, each made once"


def test_results_lie_in_memory_as_they_did(faster: Callable[[], list[str]]) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.sigmoid(x * 2)
        return y, y.view(-1), y.t()[1:], x.t(), x

    x = torch.randn(7, 5)[:, 1:]
    kernels = compiling.Kernels(QUICK)
    island = compiling.Island(torch.fx.symbolic_trace(function), kernels)
    want, found = function(x), island(x)
    assert "of the time" in faster()[0]
    for a, b in zip(want, found, strict=True):
        torch.testing.assert_close(a, b, check_stride=True)
    for result in found[1:3]:
        assert result.untyped_storage().data_ptr() == found[0].untyped_storage().data_ptr()
    assert found[3].data_ptr() == found[4].data_ptr() == x.data_ptr()


def test_what_is_written_to_a_view_is_in_all_others(faster: Callable[[], list[str]]) -> None:
    """Of a result whose whole comes after a part of it, too: the two had memory of their own."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.sigmoid(x * 2)
        return y[1:], y[1:, ::2], y.t(), y.view(-1), y[2]

    x = torch.randn(4, 4)
    island = compiling.Island(torch.fx.symbolic_trace(function), compiling.Kernels(QUICK))
    want, found = function(x), island(x)
    assert "of the time" in faster()[0]
    for results in (want, found):
        results[0].mul_(2)
        results[4].fill_(7)
        results[3][0] = 3
    for a, b in zip(want, found, strict=True):
        torch.testing.assert_close(a, b, check_stride=True)


def test_a_view_is_of_the_argument_that_it_is_of(faster: Callable[[], list[str]]) -> None:
    """At the call that an island is made for two arguments lie in one memory, at the next one they do not."""

    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.sigmoid(a * 2) + b, b.t()

    island = compiling.Island(torch.fx.symbolic_trace(function), compiling.Kernels(QUICK))
    both = torch.randn(8, 4)
    for a, b in ((both[:4], both[4:]), (both[4:], both[4:]), (torch.randn(4, 4), torch.randn(4, 4))):
        for want, found in zip(function(a, b), island(a, b), strict=True):
            torch.testing.assert_close(found, want, check_stride=True)
    assert "of the time" in faster()[0]


def test_tensors_of_a_class_of_their_own_are_taken_as_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an image's: torch looks at what runs at the first call, and refused what was called with one."""

    class Image(torch.Tensor):
        pass

    taken = compiling.Outcome(
        lambda x: torch.sigmoid(x) * 2 if type(x) is torch.Tensor else torch.zeros(()), speedup=2.0
    )
    monkeypatch.setattr(compiling.Kernels, "of", lambda *_: taken)
    image = torch.randn(4, 3).as_subclass(Image)
    fast = compiling.compile(lambda x: torch.sigmoid(x) * 2)
    for _ in range(2):
        found = fast(image)
        assert type(found) is Image
        torch.testing.assert_close(found, torch.sigmoid(image) * 2)
    torch._dynamo.reset()


def test_random_numbers_are_drawn_in_the_order_that_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """One island before the first and behind the second would have them drawn the other way round."""

    def none(*args: Any, **options: Any) -> Any:
        raise NoImprovementError("nothing is better")

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chances = torch.sigmoid(x * 2)
        drawn = torch.bernoulli(chances)
        return drawn, torch.tanh(torch.rand_like(x) * 2 + chances)

    monkeypatch.setattr(compiling, "optimize", none)
    fast, x = torch.compile(function, backend=compiling.backend), torch.randn(3, 5)
    for seed in range(3):
        torch.manual_seed(seed)
        want = function(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(fast(x), want)


def test_threads_divide_a_graph_once(monkeypatch: pytest.MonkeyPatch) -> None:
    divided: list[torch.fx.GraphModule] = []
    both = threading.Barrier(2)

    def slowly(graph: compiling.Graph) -> torch.fx.GraphModule:
        time.sleep(0.05)
        divided.append(graph.captured)
        return graph.captured

    def call() -> torch.Tensor:
        both.wait()
        return graph(x)  # type: ignore[no-any-return]

    monkeypatch.setattr(compiling.Graph, "_divided", slowly)
    graph, x = (
        compiling.Graph(torch.fx.symbolic_trace(lambda x: torch.sigmoid(x)), compiling.Kernels(QUICK)),
        torch.randn(3),
    )
    with ThreadPoolExecutor(2) as pool:
        for found in [pool.submit(call) for _ in range(2)]:
            torch.testing.assert_close(found.result(), torch.sigmoid(x))
    assert divided == [graph.captured]


def test_casts_that_are_taken_back_round_as_they_did(faster: Callable[[], list[str]]) -> None:
    """What is rounded to bfloat16 and back is not the same number, though over the reals it is."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.sigmoid(x * 2)
        return (y - y.bfloat16().t().float().t()) * 3 + y.half().sum(0) * 0

    x = torch.randn(7, 5)
    torch.testing.assert_close(prism.compile(function, **QUICK)(x), function(x), rtol=1e-3, atol=1e-6)
    assert any("of the time" in line for line in faster())


def test_results_without_a_whole_of_their_own_lie_as_they_did(faster: Callable[[], list[str]]) -> None:
    """Of a row there are many, and of three tensors side by side each is a part: neither is all of its memory."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.sigmoid(x * 2)
        one, two, three = torch.split(y, 2, dim=1)
        return y.sum(1, keepdim=True).expand(-1, 4), one, two, three.t()

    x = torch.randn(7, 6)
    island = compiling.Island(torch.fx.symbolic_trace(function), compiling.Kernels(QUICK))
    want, found = function(x), island(x)
    assert "of the time" in faster()[0]
    for a, b in zip(want, found, strict=True):
        torch.testing.assert_close(a, b, check_stride=True)


def test_results_that_kernels_do_not_give_run_as_they_did(faster: Callable[[], list[str]]) -> None:
    """Beside a loss, which keeps its targets for the way back, and running counts: the others are not lost by them."""

    def function(x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, count = torch.sigmoid(x * 2), ids + 2**26
        return ids.view(-1), y, count, y.sum(0).double(), count.t()[1:], y.t()

    x, ids = torch.randn(7, 5), torch.arange(6).view(2, 3)
    island = compiling.Island(torch.fx.symbolic_trace(function), compiling.Kernels(QUICK))
    for _ in range(2):
        want, found = function(x, ids), island(x, ids)
        for a, b in zip(want, found, strict=True):
            torch.testing.assert_close(a, b, check_stride=True)
        assert found[0].data_ptr() == ids.data_ptr()
        for place, of in ((4, 2), (5, 1)):
            assert found[place].untyped_storage().data_ptr() == found[of].untyped_storage().data_ptr()
    assert "of the time" in faster()[0]


def test_a_number_that_changes_and_a_part_in_float64_cost_an_island_nothing(faster: Callable[[], list[str]]) -> None:
    """Dynamo makes a tensor in float64 of a number that was another before."""

    def function(x: torch.Tensor, d: torch.Tensor, by: float) -> tuple[torch.Tensor, ...]:
        return torch.softmax(x * by, -1) + (1 - by), (d.exp() * by).float().sum(0) * x.sum(0), x.sum(1).double() - by

    fast, x, d = prism.compile(function, **QUICK), torch.randn(4, 8), torch.randn(3, 8, dtype=torch.float64)
    for by in (0.9990001, 1.75, -2.0):
        for found, want in zip(fast(x, d, by), function(x, d, by), strict=True):
            torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)
    said = [line for line in faster() if "operators take" in line or "run as" in line]
    assert len(said) == 2, "one of the number, and one of all others"
    assert all("of the time" in line for line in said), said


def graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """The graphs that are divided from now on; islands run as they did."""
    found: list[torch.fx.GraphModule] = []

    class Seen(compiling.Graph):
        def _divided(self) -> torch.fx.GraphModule:
            found.append(super()._divided())
            return found[-1]

    monkeypatch.setattr(compiling, "Graph", Seen)
    monkeypatch.setattr(compiling.Kernels, "of", lambda *_: compiling.Outcome(None, why="nothing is asked for"))
    return found


def outside(graph: torch.fx.GraphModule) -> list[str]:
    """The operators of a divided graph that are in no island."""
    return [str(n.target) for n in graph.graph.nodes if isinstance(n.target, torch._ops.OpOverload)]


def test_norms_and_attention_are_in_islands_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv = torch.nn.LayerNorm(8), torch.nn.Linear(8, 24)
            self.groups = torch.nn.GroupNorm(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
            made = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            normal: torch.Tensor = self.groups(made.transpose(1, 2).flatten(2))
            return normal

    found = graphs(monkeypatch)
    model, x = Layer(), torch.randn(2, 3, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=compiling.backend)(x), model(x))
    torch._dynamo.reset()
    torch.compile(model, backend=compiling.backend)(x).square().sum().backward()
    torch._dynamo.reset()
    assert [outside(g) for g in found] == [[], [], []]


def stepped(run: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What it makes and the gradient of the sum of squares of that, from one seed."""
    torch.manual_seed(0)
    made = run(x)
    (gradient,) = torch.autograd.grad(made.square().sum(), x)
    return made, gradient


def test_attentions_one_after_another_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps what its gradient needs, and only those with dropout draw random numbers, in their order."""
    attention = torch.nn.functional.scaled_dot_product_attention
    given: list[int] = []

    def one(
        _: object, function: Callable[..., Any], tensors: Sequence[torch.Tensor], time: Deadline
    ) -> compiling.Outcome:
        given.append(len(tensors))
        return compiling.Outcome(function, 1.0)

    found = graphs(monkeypatch)
    monkeypatch.setattr(compiling.Kernels, "of", one)
    x = torch.randn(1, 2, 4, 8, requires_grad=True)

    def model(x: torch.Tensor, rate: float) -> torch.Tensor:
        x = attention(x * 2, x, x, dropout_p=rate)
        x = attention(x * 2, x, x, dropout_p=rate)
        return torch.rand_like(x) * x * 2

    for rate in (0.0, 0.5):
        function = functools.partial(model, rate=rate)
        compiled = torch.compile(function, backend=compiling.backend)
        torch.testing.assert_close(stepped(compiled, x), stepped(function, x))
        torch._dynamo.reset()
        assert not [name for g in found for name in outside(g) if "attention" in name]
    assert given


def test_what_a_checkpoint_runs_again_is_in_islands_unless_it_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch keeps the generator's state for each attention: without dropout nothing is drawn."""
    attention = torch.nn.functional.scaled_dot_product_attention

    def model(x: torch.Tensor, rate: float) -> torch.Tensor:
        def layer(y: torch.Tensor) -> torch.Tensor:
            return torch.tanh(attention(y * 2, y, y, dropout_p=rate)).sin()

        made: torch.Tensor = checkpoint(layer, x, use_reentrant=False)
        return made

    found = graphs(monkeypatch)
    x = torch.randn(1, 2, 4, 8, requires_grad=True)

    for rate in (0.0, 0.5):
        function = functools.partial(model, rate=rate)
        compiled = torch.compile(function, backend=compiling.backend)
        torch.testing.assert_close(stepped(compiled, x), stepped(function, x))
        torch._dynamo.reset()
    held = [sum("rng_state" in str(n.target) for n in g.graph.nodes if n.op == "call_function") for g in found]
    assert held[:2] == [1, 0], "the state itself, which the way back is given"
    assert outside(found[0]) == outside(found[1]) == []
    assert held[2:] == [1, 1]


def test_sizes_that_data_say_are_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """When an island is looked for nobody knows them."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x[x > 0] * 2) + 1

    found = graphs(monkeypatch)
    settings: Any = torch._dynamo.config
    with settings.patch(capture_dynamic_output_shape_ops=True):
        fast = torch.compile(function, backend=compiling.backend, fullgraph=True)
        for x in (torch.randn(9), torch.randn(9), torch.ones(9), -torch.ones(9)):
            torch.testing.assert_close(fast(x), function(x))
    (graph,) = found
    assert "aten.index.Tensor" in outside(graph)
    assert "aten.sigmoid.default" not in outside(graph)


def test_numbers_that_sizes_say_are_in_islands_and_data_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2 / math.sqrt(x.shape[0]), -1)

    def other(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.full_like(x, y.item()) + 1)

    found = graphs(monkeypatch)
    fast = torch.compile(function, backend=compiling.backend, dynamic=True)
    for rows in (3, 5):
        torch.testing.assert_close(fast(torch.ones(rows, 4)), function(torch.ones(rows, 4)))
    assert not [name for name in outside(found[0]) if "softmax" in name or "mul" in name]
    settings: Any = torch._dynamo.config
    with settings.patch(capture_scalar_outputs=True):
        filled, y = torch.compile(other, backend=compiling.backend, fullgraph=True), torch.tensor(1.5)
        torch.testing.assert_close(filled(torch.ones(3), y), other(torch.ones(3), y))
    assert "aten.full_like.default" in outside(found[1])


def test_memory_that_nothing_was_written_to_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers of any size may be in it, and an island is given them."""

    def function(order: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        back = torch.empty_like(order).scatter(0, torch.topk(order, 200).indices, torch.arange(200))
        return torch.sigmoid(x[back] * 2)

    found = graphs(monkeypatch)
    order, x = torch.arange(200).flip(0).roll(3), torch.randn(200, 5)
    torch.testing.assert_close(torch.compile(function, backend=compiling.backend)(order, x), function(order, x))
    assert "aten.topk.default" in outside(found[0])
    assert not [n for n in found[0].graph.nodes if "empty" in str(n.target)]


@pytest.mark.parametrize("experts", [8, 64])
def test_orders_of_long_rows_stay_on_a_cpu(experts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A router is one island, but where all of it would lose by what orders its experts."""

    def router(x: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(x * 2, -1)
        values, places = scores.topk(2, -1)
        return torch.zeros_like(scores).scatter(-1, places, values / values.sum(-1, keepdim=True))

    found = graphs(monkeypatch)
    x = torch.randn(4, experts)
    torch.testing.assert_close(torch.compile(router, backend=compiling.backend)(x), router(x))
    assert ("aten.topk.default" in outside(found[0])) == (experts == 64)


def test_a_batch_norm_in_eval_mode_may_leave_strides_that_torch_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it does, a view that was captured for what torch says is none."""
    found = graphs(monkeypatch)
    norm = torch.nn.BatchNorm1d(8).eval()

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(norm(x.transpose(1, 2)).transpose(1, 2).reshape(-1, 8) * 2)

    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(torch.compile(function, backend=compiling.backend)(x), function(x))
    assert outside(found[0]) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["as trained", "of one type"])
def test_norms_that_keep_other_types_than_torch_says_stay(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernels of one graph keep may be read by torch's operators in the next."""
    found = graphs(monkeypatch)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GroupNorm(2, 8)).to(dtype)

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made: torch.Tensor = model(x)
        return made

    made = torch.compile(step, backend=compiling.backend)(torch.randn(4, 8, dtype=dtype))
    made.square().sum().backward()  # type: ignore[no-untyped-call]
    stay = [sum("norm" in name for name in outside(g)) for g in found]
    assert stay == ([2, 2] if dtype == torch.float32 else [0, 0])


def test_windows_stay_on_a_cpu(faster: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    found = graphs(monkeypatch)
    nn = torch.nn
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Tanh(), nn.MaxPool2d(2), nn.Tanh(), nn.Sigmoid())
    with torch.no_grad():
        torch.compile(model, backend=compiling.backend)(torch.randn(1, 3, 8, 8))
    stay = ["aten.convolution.default", "aten.max_pool2d_with_indices.default"]
    assert outside(found[0]) == stay
    assert f"2 operators stay as they are, of {', '.join(stay)}" in faster()


def test_what_nothing_is_better_for_runs_as_it_did(
    faster: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*args: Any, **options: Any) -> Any:
        raise NoImprovementError("nothing beats what was given", where="island")

    monkeypatch.setattr(compiling, "optimize", none)
    monkeypatch.setattr(compiling, "MOST", 1)
    fast = torch.compile(lambda x: torch.relu(x).sum(-1), backend=compiling.backend, dynamic=True)
    for rows in (3, 4, 5):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(fast(x), torch.relu(x).sum(-1))
    assert [re.sub(r"^\d+", "n", line) for line in faster()] == [
        "n operators run as they did: island: nothing beats what was given"
    ]


def test_an_operator_that_nothing_will_do_for_runs_as_it_did_alone(
    faster: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = prism.optimize

    def optimize(program: Any, **options: Any) -> Any:
        if any("erf" in str(d.expr) for d in program.definitions):
            raise of_one_part(NoImprovementError("nothing was proved"), "island")
        return real(program, **options)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (y, z), w = torch.sigmoid(x * 3).chunk(2), torch.exp(x)
        return torch.erf(y + z) * w[:2], y.transpose(0, 1)

    monkeypatch.setattr(compiling, "optimize", optimize)
    fast = prism.compile(function, **QUICK)
    for _ in range(2):
        x = torch.randn(4, 8)
        for found, want in zip(fast(x), function(x), strict=True):
            assert found.stride() == want.stride()
            torch.testing.assert_close(found, want)
    said = faster()
    alone = [line for line in said if "run as they did: island: nothing was proved" in line]
    assert [line.split()[0] for line in alone] == ["1"], said
    assert any("are halved" in line for line in said)
    assert any("of the time" in line for line in said), said


def test_an_operator_that_cannot_be_read_beside_others_runs_as_it_did_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of what is given may be too large to be divided exactly, which is seen from more than the division."""
    made: list[int] = []

    def optimize(program: Any, **options: Any) -> Any:
        made.append(len(program.definitions))
        raise NoImprovementError("nothing is better")

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * y + x) // 3, torch.softmax((x - y).float(), -1)

    monkeypatch.setattr(compiling, "optimize", optimize)
    x, y = torch.randint(-9, 9, (2, 4, 8)).unbind(0)
    for found, want in zip(prism.compile(function, target="cpu")(x, y), function(x, y), strict=True):
        torch.testing.assert_close(found, want)
    assert made
    torch._dynamo.reset()


def test_islands_are_one_where_their_programs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant's last digits and a type in between tell them apart."""
    made: list[str] = []

    def none(program: Any, **options: Any) -> Any:
        made.append(str(program))
        raise NoImprovementError("nothing is better")

    monkeypatch.setattr(compiling, "optimize", none)
    kernels = compiling.Kernels({"target": "cpu"})
    x, ids = torch.randn(8), torch.arange(8, dtype=torch.int32)
    for function, given, many in (
        (lambda x: torch.exp(x) * 1.0000001, x, 1),
        (lambda x: x.exp() * 1.0000001, x, 1),
        (lambda x: torch.exp(x) * 1.0000002, x, 2),
        (lambda x: x + 1000001, ids, 3),
        (lambda x: x + 1000002, ids, 4),
        (lambda x: x.to(torch.float32) * 2, ids, 5),
        (lambda x: x.to(torch.float16) * 2, ids, 6),
    ):
        kernels.of(function, [given])
        assert len(made) == many, made


def test_a_bug_of_prisms_leaves_what_was(faster: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **options: Any) -> Any:
        raise ZeroDivisionError("one of ours")

    monkeypatch.setattr(compiling, "optimize", broken)
    fast = prism.compile(lambda x: torch.relu(x).sum(-1))
    x = torch.randn(3, 5)
    torch.testing.assert_close(fast(x), torch.relu(x).sum(-1))
    assert faster() == ["a bug in prism", "2 operators run as they did: a bug in prism: one of ours"]


def test_without_inputs_and_of_several_results_at_once() -> None:
    def function() -> tuple[torch.Tensor, ...]:
        values, places = torch.arange(6.0).sort(descending=True)
        return values * 2, places + 1

    for found, want in zip(prism.compile(function, **QUICK)(), function(), strict=True):
        torch.testing.assert_close(found, want)
    torch._dynamo.reset()


def test_islands_share_the_time_of_their_graph(
    faster: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By how many operators they have; equal ones are one, and what there is no time for runs as it did."""
    now, took, had = [0.0], [30.0], []

    def search(*args: Any, seconds: Deadline, **options: Any) -> Any:
        had.append((seconds.end - now[0], seconds.given))
        now[0] += took[0]
        raise NoImprovementError("nothing is better")

    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = torch.lgamma(torch.sigmoid(x * 2))
        return torch.lgamma(torch.tanh(x * 3 - 1) * 4)

    monkeypatch.setattr(compiling, "optimize", search)
    monkeypatch.setattr(compiling, "monotonic", lambda: now[0])
    monkeypatch.setattr(compiling, "here", lambda seconds: seconds)
    x = torch.randn(3, 5)
    want = function(x)
    torch.testing.assert_close(prism.compile(function, seconds=90)(x), want)
    assert had == [(90 * 2 / 6, 90), (60, 90)], "of six operators two, and then all that is left"
    torch._dynamo.reset()
    had.clear()
    took[0] = 20.0
    torch.testing.assert_close(torch.compile(function, backend=compiling.backend, options={"seconds": 15})(x), want)
    assert had == [(LEAST_S, 15)]
    assert faster()[-2:] == [
        "2 operators run as they did: nothing is better",
        f"4 operators run as they did: the 15 s of this graph are over; {MORE_TIME}",
    ]


def test_kernels_are_for_where_tensors_are() -> None:
    kernels = compiling.Kernels({"target": "cuda"})
    said = kernels.of(torch.sigmoid, [torch.ones(3)]).why
    assert said == "tensors are on cpu, and kernels for cuda"
    said = compiling.Kernels({}).of(torch.sigmoid, [torch.ones(3, device="meta")]).why
    assert said == "tensors are on meta, and kernels for cpu or cuda"


def test_options_are_those_of_optimize() -> None:
    with pytest.raises(UsageError, match="no option 'fast'"):
        prism.compile(lambda x: x, fast=True)
    with pytest.raises(Exception, match="no mode 'max-autotune'"):
        torch.compile(lambda x: x * 2, backend=compiling.backend, mode="max-autotune")(torch.ones(3))
    torch._dynamo.reset()
    for option, said in (
        ({"target": "sm_90"}, "cpu or cuda"),
        ({"trials": "4"}, "'4', a str"),
        ({"trials": 0}, "trials is 0"),
        ({"seconds": 0.0}, "in no time"),
        ({"budget": "9s"}, "seconds="),
        ({"seconds": "9s"}, "a number of seconds"),
        ({"seconds": NEVER}, "as in seconds=60"),
    ):
        with pytest.raises(UsageError, match=said):
            prism.compile(None, **option)
    with pytest.raises(UsageError, match="this is a int"):
        prism.compile(3)


def test_torch_finds_the_backend_by_its_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["prism"].partition(":")
    assert getattr(import_module(module), name) is compiling.backend


@pytest.mark.slow  # what it does, the others do on fewer operators
def test_the_snippet_of_the_documentation(faster: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    snippet, _ = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "torch_compile.md").read_text(), re.S)
    monkeypatch.setattr(prism, "compile", functools.partial(compiling.compile, **QUICK), raising=False)
    exec(snippet, {})
    assert len(faster()) >= 2


@pytest.mark.slow  # test_cpu_emit calls operators of modules; here inductor compiles around one
def test_the_snippet_about_an_operator_of_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, snippet = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "torch_compile.md").read_text(), re.S)
    scripted(monkeypatch, {"eager": 2e-3, "compiled": 2e-3, "kernels": 1e-3})
    exec(snippet, {})
    assert capsys.readouterr().out.strip().endswith("torch.Size([64, 128])")
