"""The suite as data: what each case computes, at which shapes, and how fast the device could at best do it.

A case is a workload (a function of `functions.py` with its arguments as formulas of sizes) at sizes. The floor is the
larger of its bytes, each input read and each output written once, and its operations, at the rates measured on an H200.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from prism.program.nodes import DType

BANDWIDTH_BYTES_S = 4.3e12
"""What a copy reaches on an H200, bytes read and written."""
DOT_FLOPS = 790e12
"""What a large bfloat16 matrix product reaches there, operations a second."""
MEAN_FLOOR_US = 2.0
"""A case with a floor below this measures the launch: it is reported and left out of the mean, microseconds."""

Sizes: TypeAlias = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output."""

    name: str  # of the input
    shape: tuple[int, ...]  # concrete
    dtype: str = "bfloat16"  # torch's name
    scale: float = 1.0  # standard deviation of the draw of an input; integers are uniform over their whole range
    offset: float = 0.0  # mean of the draw
    below: int | None = None  # what integers are less than that are drawn from 0 on, as places in another input are

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * DType(self.dtype).bytes


@dataclass(frozen=True, slots=True)
class Workload:
    """A function with what is known of it at any sizes."""

    name: str  # the function's name
    arguments: Callable[[Sizes], tuple[Argument, ...]]  # its inputs, in order
    outputs: Callable[[Sizes], tuple[Argument, ...]]  # its outputs, in order
    flops: Callable[[Sizes], float]  # matrix operations, of those that are needed (a causal mask halves them)
    reduced: Sizes  # sizes at which it is checked, ragged against powers of two
    baselines: tuple[str, ...] = ()  # what it is timed against besides eager and torch.compile; see `baselines.py`
    module: str = "prism.bench.functions"  # where the function is
    mode: str = "max-autotune-no-cudagraphs"  # of torch.compile
    assume: tuple[str, ...] = ()  # what is stated of its inputs


@dataclass(frozen=True, slots=True)
class Case:
    """A workload at sizes."""

    name: str  # unique
    group: str  # `suite`, or where the shapes were published
    workload: Workload  # what is computed
    sizes: Sizes = field(hash=False)
    stated_us: float | None = None  # the floor that the suite's table states, where it does
    note: str = ""  # why it differs from what is computed here, where it does

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The inputs."""
        return self.workload.arguments(self.sizes)

    @property
    def outputs(self) -> tuple[Argument, ...]:
        """The outputs."""
        return self.workload.outputs(self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes of all inputs and outputs."""
        return sum(a.bytes for a in (*self.arguments, *self.outputs))

    @property
    def flops(self) -> float:
        """Matrix operations."""
        return self.workload.flops(self.sizes)

    @property
    def memory_bound(self) -> bool:
        """Whether the floor is that of the bytes."""
        return self.bytes / BANDWIDTH_BYTES_S >= self.flops / DOT_FLOPS

    @property
    def floor_us(self) -> float:
        """The least time that the device could take, microseconds."""
        return 1e6 * max(self.bytes / BANDWIDTH_BYTES_S, self.flops / DOT_FLOPS)

    @property
    def in_mean(self) -> bool:
        """Whether it counts in the geometric mean."""
        return self.group == "suite" and self.floor_us >= MEAN_FLOOR_US


@dataclass(frozen=True, slots=True)
class _Like:
    """An argument at any sizes: `axes` are their names, divided where there is a stroke (`k/2`, `k/g`).

    What has an axis `over` is drawn so small that products summed over it keep the scale of what it is applied to.
    """

    name: str
    axes: str
    dtype: str = "bfloat16"
    scale: float = 1.0
    offset: float = 0.0
    over: str = ""

    def at(self, z: Sizes) -> Argument:
        """The argument at sizes."""
        parts = [axis.split("/") for axis in self.axes.split()]
        shape = tuple(z[a] // math.prod(int(d) if d.isdigit() else z[d] for d in by) for a, *by in parts)
        return Argument(self.name, shape, self.dtype, z[self.over] ** -0.5 if self.over else self.scale, self.offset)


_a = _Like


def _w(name: str, axes: str, over: str = "") -> _Like:
    """A weight, whose products are summed over an axis, the last by default."""
    return _Like(name, axes, over=over or axes.split()[-1])


def _g(name: str, axes: str) -> _Like:
    """A weight of a norm."""
    return _Like(name, axes, scale=0.2, offset=1.0)


def _of(*arguments: _Like) -> Callable[[Sizes], tuple[Argument, ...]]:
    return lambda z: tuple(a.at(z) for a in arguments)


def _ops(factor: float, axes: str) -> Callable[[Sizes], float]:
    """So many operations for each element of these axes."""
    return lambda z: float(factor * math.prod(z[a] for a in axes.split()))


_NONE = _ops(0.0, "")
_Y = _of(_a("y", "m n"))
_ROWS = {"m": 5, "k": 1032, "n": 776}
RMSNORM_LINEAR = Workload(
    "rmsnorm_linear",
    _of(_a("x", "m k"), _g("g", "k"), _w("w", "n k")),
    _Y,
    _ops(2, "m k n"),
    _ROWS,
    ("F.rms_norm + cuBLAS", "liger", "helion"),
)
RMSNORM_GATE_UP = Workload(
    "rmsnorm_gate_up",
    _of(_a("x", "m k"), _g("g", "k"), _w("gate", "n k"), _w("up", "n k")),
    _Y,
    _ops(4, "m k n"),
    _ROWS,
    ("F.rms_norm + cuBLAS", "liger"),
)
GATED_MLP = Workload(
    "gated_mlp",
    _of(_a("x", "m k"), _w("gate", "n k"), _w("up", "n k"), _w("down", "k n")),
    _of(_a("y", "m k")),
    _ops(6, "m k n"),
    _ROWS,
    ("fused gate+up cuBLAS", "liger"),
)

_SDPA = ("SDPA flash", "SDPA cuDNN", "SDPA efficient")
_GQA = (_a("q", "b h q d"), _a("k", "b kv s d"), _a("v", "b kv s d"))
_HEADS = _of(_a("y", "b h q d"))
_SCORES = _ops(4, "b h q s d")
_DECODED = {"b": 2, "h": 8, "kv": 2, "q": 1, "s": 1000, "d": 128}
GQA_DECODE = Workload(
    "gqa_decode", _of(*_GQA), _HEADS, _SCORES, _DECODED, (*_SDPA, "SDPA flash, packed", "SDPA cuDNN, packed")
)
GQA_PREFILL = Workload(
    "gqa_prefill",
    _of(*_GQA),
    _HEADS,
    _ops(2, "b h q s d"),
    {"b": 1, "h": 8, "kv": 2, "q": 328, "s": 328, "d": 128},
    _SDPA,
)
QK_NORM_ROPE_GQA_DECODE = Workload(
    "qk_norm_rope_gqa_decode",
    _of(*_GQA, _g("gq", "d"), _a("cos", "d"), _a("sin", "d")),
    _HEADS,
    _SCORES,
    _DECODED,
    ("norm, RoPE + SDPA flash, packed", "norm, RoPE + SDPA cuDNN, packed"),
)
LORA = Workload(
    "lora",
    _of(_a("x", "m k"), _w("w", "n k"), _w("a", "r k"), _w("b", "n r")),
    _Y,
    lambda z: 2.0 * z["m"] * (z["k"] * z["n"] + z["k"] * z["r"] + z["r"] * z["n"]),
    {**_ROWS, "r": 16},
)
LAYERNORM_GELU_MLP = Workload(
    "layernorm_gelu_mlp",
    _of(
        _a("x", "m k"),
        _g("g", "k"),
        _a("b", "k", scale=0.2),
        _w("w1", "n k"),
        _a("b1", "n", scale=0.2),
        _w("w2", "k n"),
        _a("b2", "k", scale=0.2),
    ),
    _of(_a("y", "m k")),
    _ops(4, "m k n"),
    {"m": 40, "k": 264, "n": 520},
)
SOFTMAX_V = Workload(
    "softmax_v",
    _of(_a("s", "h q k"), _a("v", "h k d")),
    _of(_a("y", "h q d")),
    _ops(2, "h q k d"),
    {"h": 2, "q": 72, "k": 328, "d": 128},
)
INT8_LINEAR = Workload(
    "int8_linear",
    _of(_a("x", "m k"), _a("w", "n k", "int8"), _a("scale", "n", scale=2e-5, offset=2e-4)),
    _Y,
    _ops(2, "m k n"),
    _ROWS,
)
INT4_LINEAR = Workload(
    "int4_linear",
    _of(
        _a("x", "m k"),
        _a("w", "n k/2", "uint8"),
        _a("scale", "n k/g", scale=2e-4, offset=3e-3),
        _a("zero", "n k/g", scale=1.0, offset=7.5),
    ),
    _Y,
    _ops(2, "m k n"),
    {"m": 5, "k": 1152, "n": 776, "g": 128},
    ("_weight_int4pack_mm",),
)
ADD_RMSNORM = Workload(
    "add_rmsnorm",
    _of(_a("x", "m k"), _a("residual", "m k"), _g("g", "k")),
    _of(_a("y", "m k"), _a("h", "m k")),
    _NONE,
    {"m": 13, "k": 1000},
    ("F.rms_norm + cuBLAS", "liger", "helion"),
)
MLA_DECODE = Workload(
    "mla_decode",
    _of(_a("q", "b h r", scale=0.5), _a("qr", "b h p", scale=0.5), _a("c", "b s r"), _a("kr", "b s p")),
    _of(_a("y", "b h r")),
    lambda z: 2.0 * z["b"] * z["h"] * z["s"] * (2 * z["r"] + z["p"]),
    {"b": 2, "h": 20, "r": 256, "p": 64, "s": 520},
    ("SDPA cuDNN, concatenated",),
)
NGPT_RESIDUAL = Workload(
    "ngpt_residual",
    _of(_w("h", "m k"), _a("block", "m k"), _a("alpha", "k", scale=0.05)),
    _of(_a("y", "m k")),
    _NONE,
    {"m": 13, "k": 1000},
)
LOGSUMEXP = Workload("logsumexp", _of(_a("x", "m v")), _of(_a("y", "m", "float32")), _NONE, {"m": 13, "v": 3000})
LINEAR_ATTENTION = Workload(
    "linear_attention",
    _of(_w("q", "h l d"), _w("k", "h l d"), _a("v", "h l d")),
    _of(_a("y", "h l d")),
    # By chunks of 128: half of each chunk's own scores, their product with the values, states, and their use.
    lambda z: z["h"] * z["l"] * z["d"] * (2.0 * 128 + 4.0 * z["d"]),
    {"h": 2, "l": 384, "d": 32},
)
MATMUL_ATTENTION = Workload(
    "matmul_attention",
    _of(_a("q", "b q d"), _a("k", "b d s"), _a("v", "b s d")),
    _of(_a("y", "b q d")),
    _ops(4, "b q s d"),
    {"b": 2, "q": 72, "s": 520, "d": 64},
)
QK_NORM_MATMUL_ATTENTION = replace(MATMUL_ATTENTION, name="qk_norm_matmul_attention")
NORM_MATMUL = Workload("norm_matmul", _of(_a("x", "m k"), _w("w", "k n", "k")), _Y, _ops(2, "m k n"), _ROWS)
GATED_MATMUL = Workload(
    "gated_matmul", _of(_a("x", "m k"), _w("gate", "k n", "k"), _w("up", "k n", "k")), _Y, _ops(4, "m k n"), _ROWS
)
NORM_GATED_MATMUL = replace(GATED_MATMUL, name="norm_gated_matmul")
LORA_MATMUL = Workload(
    "lora_matmul",
    _of(_a("x", "m k"), _w("w", "k n", "k"), _w("a", "k r", "k"), _w("b", "r n", "r")),
    LORA.outputs,
    LORA.flops,
    LORA.reduced,
)
ATTENTION = Workload(
    "attention",
    _of(_a("q", "b h q d"), _a("k", "b h s d"), _a("v", "b h s d")),
    _HEADS,
    _SCORES,
    {"b": 2, "h": 3, "q": 72, "s": 520, "d": 128},
    _SDPA,
)
QK_NORM_ATTENTION = replace(ATTENTION, name="qk_norm_attention", baselines=())


def _suite() -> list[Case]:
    cases: list[Case] = []

    def add(name: str, workload: Workload, stated: float, sizes: Sizes, note: str = "") -> None:
        cases.append(Case(name, "suite", workload, sizes, stated, note))

    for m, us in ((1, 11.7), (8, 11.7), (64, 12.0)):
        add(f"RMSNorm+QKV M{m}", RMSNORM_LINEAR, us, {"m": m, "k": 4096, "n": 6144})
    for m, us in ((1, 54.6), (8, 54.7), (64, 55.2)):
        add(f"RMSNorm+gate/up+SwiGLU M{m}", RMSNORM_GATE_UP, us, {"m": m, "k": 4096, "n": 14336})
    for m, us in ((1, 81.9), (64, 82.2)):
        add(f"gated MLP M{m}", GATED_MLP, us, {"m": m, "k": 4096, "n": 14336})
    heads = {"h": 32, "kv": 8, "d": 128}
    for b, s, us in ((1, 4096, 3.9), (8, 4096, 31.2), (32, 4096, 125), (1, 32768, 31.2), (8, 32768, 250)):
        add(f"GQA decode B{b} {s // 1024}k", GQA_DECODE, us, {"b": b, "q": 1, "s": s, **heads})
    add("GQA causal prefill B1 4k", GQA_PREFILL, 174, {"b": 1, "q": 4096, "s": 4096, **heads})
    add("QK-norm+RoPE+GQA decode B8 8k", QK_NORM_ROPE_GQA_DECODE, 62.5, {"b": 8, "q": 1, "s": 8192, **heads})
    for m, us in ((16, 7.9), (2048, 87.7)):
        add(f"LoRA M{m}", LORA, us, {"m": m, "k": 4096, "n": 4096, "r": 16})
    add("LayerNorm+GELU MLP M512", LAYERNORM_GELU_MLP, 10.9, {"m": 512, "k": 1024, "n": 4096})
    add("softmax·V", SOFTMAX_V, 19.5, {"h": 32, "q": 1024, "k": 1024, "d": 128})
    for m in (1, 16):
        add(f"int4 g128 GEMM M{m}", INT4_LINEAR, 2.1, {"m": m, "k": 4096, "n": 4096, "g": 128})
    for m in (1, 16):
        add(f"int8 GEMM M{m}", INT8_LINEAR, 3.9, {"m": m, "k": 4096, "n": 4096})
    add("add+RMSNorm M64 h7168", ADD_RMSNORM, 0.85, {"m": 64, "k": 7168})
    add("add+RMSNorm M4096 h4096", ADD_RMSNORM, 31.2, {"m": 4096, "k": 4096})
    mla = {"h": 128, "r": 512, "p": 64, "s": 4096}
    for b, us in ((1, 1.4), (8, 11.6)):
        add(f"MLA decode B{b} 4k", MLA_DECODE, us, {"b": b, **mla})
    four = "the table counts four tensors; two are read and one is written"
    add("nGPT residual M64 h4096", NGPT_RESIDUAL, 0.5, {"m": 64, "k": 4096}, four)
    add("logsumexp M4096 V128256", LOGSUMEXP, 244, {"m": 4096, "v": 128256})
    add("chunked causal linear attention", LINEAR_ATTENTION, 62.4, {"h": 32, "l": 8192, "d": 128})
    return cases


def _mirage() -> list[Case]:
    cases = []
    for b in (1, 8):
        sizes = {"b": 2 * b, "q": 256, "s": 4096, "d": 64}
        cases += [
            Case(f"Mirage GQA b{b}", "mirage", MATMUL_ATTENTION, sizes),
            Case(f"Mirage QK-norm b{b}", "mirage", QK_NORM_MATMUL_ATTENTION, sizes),
            Case(f"Mirage RMSNorm b{b}", "mirage", NORM_MATMUL, {"m": 2 * b, "k": 4096, "n": 6144}),
        ]
    cases.append(Case("Mirage LoRA", "mirage", LORA_MATMUL, {"m": 16, "k": 256, "n": 4096, "r": 16}))
    cases.append(Case("Mirage gated MLP", "mirage", GATED_MATMUL, {"m": 8, "k": 4096, "n": 4096}))
    return cases


def _prism_paper() -> list[Case]:
    cases = []
    for n, d in ((8, 1024), (8, 4096), (16, 4096)):
        sizes = {"m": n, "k": d, "n": d}
        cases += [
            Case(f"Prism rms_norm {n}x{d}", "prism-paper", NORM_MATMUL, sizes),
            Case(f"Prism rmsnorm_mlp {n}x{d}", "prism-paper", NORM_GATED_MATMUL, sizes),
            Case(f"Prism swiglu {n}x{d}", "prism-paper", GATED_MATMUL, sizes),
        ]
    for b, h, q, s, d in ((2, 8, 1, 1024, 128), (2, 8, 128, 1024, 128), (2, 32, 1, 1024, 128)):
        sizes = {"b": b, "h": h, "q": q, "s": s, "d": d}
        at = f"{b},{h},{q},{s},{d}"
        cases.append(Case(f"Prism attention {at}", "prism-paper", ATTENTION, sizes))
        cases.append(Case(f"Prism qk_norm_attention {at}", "prism-paper", QK_NORM_ATTENTION, sizes))
    return cases


CASES: tuple[Case, ...] = (*_suite(), *_mirage(), *_prism_paper())
"""Every case: the suite's, then the published shapes."""


def reduced(c: Case) -> Case:
    """The case at the sizes at which it is checked: its workload's reduced ones, no size larger than its own."""
    sizes = {name: min(size, c.workload.reduced[name]) for name, size in c.sizes.items()}
    return Case(f"{c.name}, reduced", "reduced", c.workload, sizes)
