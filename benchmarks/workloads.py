"""What the search is timed on: torch functions at the shapes of current models, and every shipped ONNX model.

The functions say what is computed, operator by operator, as a model's code does; nothing in them says how to fuse it.
They are traced from meta tensors: only shapes and data types matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prism.program.nodes import Program

MODELS = Path(__file__).resolve().parent.parent / "examples" / "models"


@dataclass(frozen=True, slots=True)
class Workload:
    """A named program.

    Attributes:
        name: as on the command line and in the results.
        fn: a torch function; None for a shipped model.
        shapes: of its arguments.
    """

    name: str
    fn: Callable[..., Any] | None = None
    shapes: tuple[tuple[int, ...], ...] = ()

    def program(self) -> Program:
        """Read or trace it."""
        from prism.api import load, trace

        if self.fn is None:
            return load(MODELS / f"{self.name}.onnx")
        import torch

        arguments = [torch.empty(s, dtype=torch.float16, device="meta") for s in self.shapes]
        return trace(self.fn, arguments, name=self.name)


def _norm(x: Any) -> Any:
    import torch

    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rmsnorm_linear(x: Any, w: Any) -> Any:
    """RMSNorm, Linear."""
    return _norm(x) @ w


def swiglu(x: Any, gate: Any, up: Any) -> Any:
    """Gated MLP before its down-projection."""
    from torch.nn import functional

    return functional.silu(x @ gate) * (x @ up)


def attention(q: Any, k: Any, v: Any) -> Any:
    """softmax(q k / sqrt(d)) v, by heads."""
    import torch

    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return torch.softmax(scores, dim=-1) @ v


def qk_norm_attention(q: Any, k: Any, v: Any) -> Any:
    """Attention over normed queries and keys."""
    return attention(_norm(q), _norm(k), v)


def rmsnorm_gated(x: Any, gate: Any, up: Any) -> Any:
    """RMSNorm into two gated Linears."""
    return swiglu(_norm(x), gate, up)


def low_rank(x: Any, w: Any, a: Any, b: Any) -> Any:
    """A Linear with a low-rank correction."""
    return x @ w + (x @ a) @ b


def ngpt_residual(h: Any, block: Any, alpha: Any) -> Any:
    """nGPT's residual: a step from one point of the sphere towards another, and back onto it."""
    import torch

    def onto_sphere(x: Any) -> Any:
        return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True))

    return onto_sphere(h + alpha * (onto_sphere(block) - h))


TRACED = (
    Workload("RMSNorm+Linear", rmsnorm_linear, ((16, 4096), (4096, 4096))),
    Workload("SwiGLU", swiglu, ((16, 4096), (4096, 14336), (4096, 14336))),
    Workload("attention", attention, ((32, 4096, 128),) * 3),
    Workload("QK-norm-attention", qk_norm_attention, ((32, 4096, 128),) * 3),
    Workload("RMSNorm+gated-Linears", rmsnorm_gated, ((16, 4096), (4096, 14336), (4096, 14336))),
    Workload("LoRA", low_rank, ((1024, 4096), (4096, 4096), (4096, 16), (16, 4096))),
    Workload("nGPT-residual", ngpt_residual, ((4096, 4096), (4096, 4096), (4096,))),
)
"""What the goal of half a second is for."""


def workloads() -> tuple[Workload, ...]:
    """All of them: the functions above, then the shipped models by name."""
    return (*TRACED, *(Workload(p.stem) for p in sorted(MODELS.glob("*.onnx"))))
