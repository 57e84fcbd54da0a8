"""What prism reads of three levels of problems: single operators, fused sequences, and nets.

    python benchmarks/problems.py [--level 1] [--only conv] [--seconds 20]

The levels are those of KernelBench (Ouyang et al., 2025; arXiv 2502.10517), the problems are written here, with small
extents: what counts is whether a module is read, not how long it takes. A row says "whole" if `prism.trace` reads the
module as one program, which compares it with torch node by node ("unchecked" where that is too much to run), and else
what it refuses, and how many of the operators that torch.compile's backend `prism` is given lie in islands; its results
are compared with eager ones. With `--seconds`, the islands of each graph are optimised for so long; by default, they
are read and checked, and run as they did.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.problem_nets import NETS

Shape = tuple[int, ...]
CLOSE = 1e-3
"""How far results may be from eager ones, relative to the largest element."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A module or function, and what it is called with.

    Attributes:
        level: 1 for single operators, 2 for sequences, 3 for nets.
        name: what it is.
        module: makes it.
        inputs: makes its example inputs.
    """

    level: int
    name: str
    module: Callable[[], Callable[..., Any]]
    inputs: Callable[[], Sequence[Tensor]]


def of(*shapes: Shape) -> Callable[[], Sequence[Tensor]]:
    """Inputs drawn from a normal distribution."""
    return lambda: [torch.randn(s) for s in shapes]


def problems() -> Iterator[Problem]:
    """All of them, level by level."""
    for level, table in enumerate((singles(), sequences(), nets()), 1):
        for name, module, inputs in table:
            yield Problem(level, name, module, inputs)


Row = tuple[str, Callable[[], Callable[..., Any]], Callable[[], Sequence[Tensor]]]


def plain(name: str, function: Callable[..., Any], *shapes: Shape) -> Row:
    """A function as it is."""
    return name, lambda: function, of(*shapes)


def made(name: str, module: Callable[[], Callable[..., Any]], *shapes: Shape) -> Row:
    """A module, which is made anew."""
    return name, module, of(*shapes)


# Level 1


def singles() -> Iterator[Row]:
    """Single operators."""
    yield from _products()
    for f in (
        F.relu, F.leaky_relu, torch.sigmoid, torch.tanh, F.silu, F.gelu, F.selu, F.hardsigmoid, F.softplus, F.softsign,
        F.elu, F.hardtanh, F.mish, F.hardswish, F.relu6, F.celu, F.logsigmoid, F.tanhshrink, F.softshrink,
    ):  # fmt: skip
        yield plain(f.__name__, f, (16, 64))
    yield plain("gelu, tanh", lambda x: F.gelu(x, approximate="tanh"), (16, 64))
    yield plain("softmax", lambda x: x.softmax(-1), (16, 64))
    yield plain("log_softmax", lambda x: x.log_softmax(1), (16, 64))
    shape: Shape
    for name, module, shape in (
        ("batch norm", lambda: nn.BatchNorm2d(8).eval(), (2, 8, 6, 6)),
        ("batch norm, training", lambda: _functional_batch_norm, (2, 8, 6, 6)),
        ("instance norm", lambda: nn.InstanceNorm2d(8), (2, 8, 6, 6)),
        ("group norm", lambda: nn.GroupNorm(4, 8), (2, 8, 6, 6)),
        ("layer norm", lambda: nn.LayerNorm([8, 6, 6]), (2, 8, 6, 6)),
    ):
        yield made(name, module, shape)
    yield plain("RMS norm", lambda x: x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt(), (2, 8, 6, 6))
    yield plain("Frobenius norm", lambda x: x / torch.norm(x, p="fro"), (2, 8, 6, 6))
    yield plain("L1 norm", lambda x: x / x.abs().mean(1, keepdim=True), (16, 64))
    yield plain("L2 norm", lambda x: x / torch.norm(x, p=2, dim=1, keepdim=True), (16, 64))
    pooled: tuple[Shape, ...] = ((2, 4, 16), (2, 4, 12, 12), (1, 2, 8, 8, 8))
    for d, shape in enumerate(pooled, 1):
        for pool in ("MaxPool", "AvgPool"):
            cls, adaptive = getattr(nn, f"{pool}{d}d"), getattr(nn, f"Adaptive{pool}{d}d")
            yield made(f"{pool}, {d}", partial(cls, 3, stride=2, padding=1), shape)
            yield made(f"adaptive {pool}, {d}", partial(adaptive, 2), shape)
    yield made("max pool, dilated", lambda: nn.MaxPool2d(2, stride=2, dilation=3), (2, 4, 12, 12))
    for f in (torch.sum, torch.mean, torch.amax, torch.amin, torch.prod, torch.argmax, torch.argmin):
        yield plain(f"{f.__name__} over an axis", lambda x, f=f: f(x, 1), (4, 8, 6))
    yield plain("max with its place", lambda x: torch.max(x, 1), (4, 8, 6))
    yield from _convolutions()
    yield plain("cumsum", lambda x: x.cumsum(1), (4, 32))
    yield plain("cumprod", lambda x: x.cumprod(1), (4, 32))
    yield plain("cumsum, reversed", lambda x: x.flip(1).cumsum(1).flip(1), (4, 32))
    yield plain("cumsum, exclusive", lambda x: F.pad(x, (1, 0))[:, :-1].cumsum(1), (4, 32))
    yield plain("cumsum, masked", lambda x, m: (x * (m > 0)).cumsum(1), (4, 32), (4, 32))
    yield plain("MSE", lambda a, b: ((a - b) ** 2).mean(), (16, 64), (16, 64))
    yield "cross entropy", lambda: F.cross_entropy, lambda: [torch.randn(16, 10), torch.randint(0, 10, (16,))]
    yield plain("Huber", F.smooth_l1_loss, (16, 64), (16, 64))
    yield plain(
        "cosine similarity loss", lambda a, b: (1 - F.cosine_similarity(a, b, dim=1)).mean(), (16, 64), (16, 64)
    )
    yield plain(
        "KL divergence",
        lambda a, b: F.kl_div(a.softmax(1).log(), b.softmax(1), reduction="batchmean"),
        (16, 64),
        (16, 64),
    )
    yield plain("hinge", lambda a, b: (1 - a * b.sign()).clamp(min=0).mean(), (16,), (16,))
    yield made("triplet margin", lambda: nn.TripletMarginLoss(margin=1.0), (16, 64), (16, 64), (16, 64))
    yield plain("attention", F.scaled_dot_product_attention, *((2, 4, 16, 8),) * 3)


def _products() -> Iterator[Row]:
    a = (24, 40)
    yield plain("square product", torch.matmul, (32, 32), (32, 32))
    yield plain("product", torch.matmul, a, (40, 16))
    yield plain("batched product", torch.bmm, (3, *a), (3, 40, 16))
    yield plain("matrix times vector", torch.matmul, a, (40, 1))
    yield plain("scalar times matrix", lambda x: x * 3.14, a)
    yield plain("large depth", torch.matmul, (8, 512), (512, 8))
    yield plain("small depth", torch.matmul, (64, 4), (4, 64))
    yield plain("irregular product", torch.matmul, (33, 71), (71, 45))
    yield plain("tall and skinny", torch.matmul, (128, 4), (4, 128))
    yield plain("3-dimensional product", torch.matmul, (4, 8, 16), (16, 12))
    yield plain("4-dimensional product", lambda x, w: torch.einsum("bijl,lk->bijk", x, w), (2, 3, 4, 16), (16, 12))
    yield plain("diagonal times matrix", lambda d, m: torch.diag(d) @ m, (24,), a)
    yield plain("symmetric product", lambda x, y: (x + x.mT) @ (y + y.mT), (16, 16), (16, 16))
    yield plain("upper triangular product", lambda x, y: torch.triu(torch.triu(x) @ torch.triu(y)), (16, 16), (16, 16))
    yield plain("lower triangular product", lambda x, y: torch.tril(torch.tril(x) @ torch.tril(y)), (16, 16), (16, 16))
    yield plain("transposed left", lambda x, y: x.T @ y, (40, 24), (40, 16))
    yield plain("transposed right", lambda x, y: x @ y.T, a, (16, 40))
    yield plain("both transposed", lambda x, y: x.T @ y.T, (40, 24), (16, 40))


def _convolutions() -> Iterator[Row]:
    for d, shape, odd in ((1, (2, 4, 20), (5,)), (2, (2, 4, 10, 12), (3, 5)), (3, (1, 4, 4, 5, 6), (3, 2, 3))):
        forward, transposed = getattr(nn, f"Conv{d}d"), getattr(nn, f"ConvTranspose{d}d")
        for kind, cls in (("convolution", forward), ("transposed convolution", transposed)):
            yield made(f"{kind}, {d}", partial(cls, 4, 6, 3, bias=False), shape)
            yield made(f"{kind}, {d}, unequal kernel", partial(cls, 4, 6, odd), shape)
            yield made(f"{kind}, {d}, strided, padded", partial(cls, 4, 6, 3, stride=2, padding=1), shape)
            yield made(f"{kind}, {d}, dilated", partial(cls, 4, 6, 3, dilation=2, padding=2), shape)
            yield made(f"{kind}, {d}, grouped", partial(cls, 4, 8, 3, groups=2), shape)
        yield made(
            f"transposed convolution, {d}, all of it",
            partial(transposed, 4, 8, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=2),
            shape,
        )
    yield made("depthwise convolution", lambda: nn.Conv2d(4, 4, 3, groups=4), (2, 4, 10, 12))
    yield made("pointwise convolution", lambda: nn.Conv2d(4, 8, 1), (2, 4, 10, 12))
    yield made(
        "depthwise and pointwise",
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.Conv2d(4, 8, 1)),
        (2, 4, 10, 12),
    )


def _functional_batch_norm(x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, training=True)


# Level 2

TAILS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky relu": F.leaky_relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "swish": lambda x: x * torch.sigmoid(x),
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "clamp": lambda x: x.clamp(-1.0, 1.0),
    "scale": lambda x: x * 0.5,
    "divide": lambda x: x / 2.0,
    "subtract": lambda x: x - 0.25,
    "add itself": lambda x: x + x.tanh(),
    "residual": lambda x: x * 2 + x,
    "softmax": lambda x: x.softmax(1),
    "log-sum-exp": lambda x: torch.logsumexp(x, 1, keepdim=True),
    "sum": lambda x: x.sum(1, keepdim=True),
    "mean": lambda x: x.mean(1, keepdim=True),
    "max": lambda x: x.max(1, keepdim=True).values,
    "min": lambda x: x.min(1, keepdim=True).values,
    "center": lambda x: x - x.mean(1, keepdim=True),
    "max pool": lambda x: F.max_pool2d(x, 2) if x.dim() == 4 else F.max_pool1d(x[:, None], 2)[:, 0],
    "average pool": lambda x: F.avg_pool2d(x, 2) if x.dim() == 4 else F.avg_pool1d(x[:, None], 2)[:, 0],
    "global pool": lambda x: x.mean((2, 3), keepdim=True) if x.dim() == 4 else x.mean(1, keepdim=True),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group norm": lambda x: F.group_norm(x, 2),
    "instance norm": lambda x: F.instance_norm(x) if x.dim() == 4 else F.instance_norm(x[:, None])[:, 0],
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "dropout": lambda x: F.dropout(x, 0.2, training=False),
}
HEADS: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "linear": (lambda: nn.Linear(24, 16), (8, 24)),
    "convolution": (lambda: nn.Conv2d(3, 8, 3, padding=1), (2, 3, 12, 12)),
    "transposed convolution": (
        lambda: nn.ConvTranspose2d(3, 8, 3, stride=2, padding=1, output_padding=1),
        (2, 3, 6, 6),
    ),
    "3-dimensional convolution": (lambda: nn.Sequential(nn.Conv3d(3, 4, 3), nn.Flatten(3)), (1, 3, 5, 6, 6)),
}
CHAINS = (
    "relu, scale", "subtract, mish", "swish, divide, clamp, tanh, clamp", "sigmoid, scale, residual", "gelu, softmax",
    "max, subtract, gelu", "leaky relu, sum, clamp", "group norm, hardtanh", "group norm, leaky relu, add itself",
    "batch norm, scale, sigmoid", "batch norm, swish", "instance norm, divide", "layer norm, gelu, scale",
    "max pool, sum, scale", "average pool, sigmoid, sum", "max pool, hardtanh, mean, tanh",
    "log-sum-exp, leaky relu, gelu",
    "min, tanh, tanh", "min, softmax", "global pool, log-sum-exp, scale", "dropout, mean, softmax",
    "softmax, sigmoid, max pool", "center, max pool, relu", "hardswish, relu, softmax, mean",
    "scale, batch norm, global pool",
)  # fmt: skip
"""Twenty-five chains, each after every head."""


class Sequence_(nn.Module):
    """A head with weights, and functions after it."""

    def __init__(self, head: nn.Module, tails: Sequence[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.head = head
        self.tails = tuple(tails)

    def forward(self, x: Tensor) -> Tensor:
        """One after the other."""
        x = self.head(x)
        for tail in self.tails:
            x = tail(x)
        return x


def _sequence(head: Callable[[], nn.Module], tails: Sequence[Callable[[Tensor], Tensor]]) -> nn.Module:
    return Sequence_(head(), tails)


def sequences() -> Iterator[Row]:
    """A layer with weights, and what follows it."""
    for name, (head, shape) in HEADS.items():
        for chain in CHAINS:
            tails = [TAILS[t] for t in chain.split(", ")]
            yield made(f"{name}, {chain}", partial(_sequence, head, tails), shape)


# Level 3


def nets() -> Iterator[Row]:
    """Nets, of few and narrow layers."""
    for name, (module, inputs) in NETS.items():
        yield name, module, inputs


# What becomes of them


@dataclass(frozen=True, slots=True)
class Result:
    """How far a problem goes.

    Attributes:
        kind: whole, unchecked where it is read whole and too large to be compared, in parts, or failed.
        inside: operators that lie in islands.
        operators: those that there are.
        why: why it is not read whole, or what failed.
    """

    kind: str
    inside: int = 0
    operators: int = 0
    why: str = ""


def result(problem: Problem, seconds: float | None) -> Result:
    """Read as one program, or cut into islands and compared with eager results."""
    from prism import trace
    from prism.errors import PrismError

    torch.manual_seed(0)
    module = problem.module()
    if isinstance(module, nn.Module):
        module.eval()
    inputs = list(problem.inputs())
    try:
        program = trace(module, inputs, name="problem")
        missing = program.conformance.missing if program.conformance is not None else "it was not compared"
        return Result("unchecked", why=missing) if missing else Result("whole")
    except PrismError as error:
        why = error.one_line()
    return in_parts(module, inputs, why, seconds)


def in_parts(module: Callable[..., Any], inputs: Sequence[Tensor], why: str, seconds: float | None) -> Result:
    """By torch.compile with prism's backend."""
    from prism.api import compiling, trace
    from prism.process.deadline import NEVER, Deadline

    counted = Counter[str]()

    class Counted(compiling.Kernels):
        def of(self, function: Any, tensors: Sequence[Tensor], time: Deadline = NEVER) -> compiling.Outcome:
            if seconds is not None:
                return super().of(function, tensors, time)
            trace(function, tensors, name="island")
            return compiling.Outcome(None, why="it is not optimised here")

    class Graph(compiling.Graph):
        def _divided(self) -> torch.fx.GraphModule:
            divided: torch.fx.GraphModule = super()._divided()
            for node in divided.graph.nodes:
                if node.op == "call_module":
                    part: Any = divided.get_submodule(node.target)
                    calls = part.operators.graph.nodes
                    counted["inside"] += sum(isinstance(n.target, torch._ops.OpOverload) for n in calls)
                counted["outside"] += isinstance(node.target, torch._ops.OpOverload)
            return divided

    before = compiling.Graph, compiling.Kernels
    compiling.Graph, compiling.Kernels = Graph, Counted  # type: ignore[misc]
    try:
        torch._dynamo.reset()
        with torch.no_grad():
            expected = _leaves(module(*inputs))
            options: dict[str, Any] = {} if seconds is None else {"seconds": seconds}
            compiled = torch.compile(module, backend=compiling.backend, options=options)
            found = _leaves(compiled(*inputs))
    except Exception as error:  # a row of the table
        return Result("failed", why=f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")
    finally:
        compiling.Graph, compiling.Kernels = before  # type: ignore[misc]
    inside, total = counted["inside"], counted["inside"] + counted["outside"]
    for a, b in zip(expected, found, strict=True):
        if a.shape != b.shape or not bool(((a - b).abs() <= CLOSE * max(1.0, float(a.abs().max()))).all()):
            return Result("failed", inside, total, "its results are not those of torch")
    return Result("in parts", inside, total, why)


def _leaves(results: Any) -> list[Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, Tensor)]


def main(arguments: Sequence[str] | None = None) -> int:
    """The table. 1 if a problem failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--level", type=int, choices=(1, 2, 3))
    parser.add_argument("--only", default="", help="names that hold this")
    parser.add_argument("--seconds", type=float, help="optimise the islands of each graph for so long")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)
    chosen = [p for p in problems() if given.level in (None, p.level) and given.only in p.name]
    if not chosen:
        parser.error(f"no problem's name holds {given.only!r}")
    kinds: dict[int, Counter[str]] = {}
    for p in chosen:
        began = time.perf_counter()
        r = result(p, given.seconds)
        kinds.setdefault(p.level, Counter())[r.kind] += 1
        share = f"{r.inside} of {r.operators} operators" if r.operators else ""
        print(
            f"{p.level}  {p.name:<58} {r.kind:<9} {share:<20} {time.perf_counter() - began:6.2f} s  {r.why[:150]}",
            flush=True,
        )
    for level, counted in kinds.items():
        print(f"level {level}: {counted.total()} problems, " + ", ".join(f"{n} {k}" for k, n in counted.items()))
    return int(any(c["failed"] for c in kinds.values()))


if __name__ == "__main__":
    sys.exit(main())
