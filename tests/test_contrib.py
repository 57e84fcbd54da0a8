"""The fused operators of onnxruntime (`com.microsoft`), drawn at random, against what onnxruntime computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from prism.errors import ExitCode, UnsupportedError
from prism.frontend.onnx.contrib import DOMAIN, TRANSLATORS
from prism.frontend.onnx.contrib_quantized import NAMES
from prism.frontend.onnx.islands import cut
from prism.frontend.onnx.other_readers import Inference
from prism.frontend.onnx.reader import from_model
from prism.program.evaluate import evaluate

onnxruntime = pytest.importorskip("onnxruntime")

Array = np.ndarray
Rng = np.random.Generator
CUDA_ALONE = frozenset({"BiasAdd", "BiasSplitGelu"})
"""Operators without a kernel for CPUs."""


@dataclass
class Case:
    """One node: its operands (None for one that is left out), attributes, results, and what of it the model holds."""

    op: str
    arrays: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    results: Sequence[str] = ("y",)
    held: Sequence[int] = ()
    domain: str = DOMAIN
    opset: int = 17

    def model(self) -> onnx.ModelProto:
        """The node as a model, whose dimensions are fixed."""
        names = ["" if a is None else f"x{n}" for n, a in enumerate(self.arrays)]
        given = {names[n]: a for n, a in enumerate(self.arrays) if a is not None}
        node = helper.make_node(self.op, names, list(self.results), domain=self.domain, name="it", **self.attributes)
        held = {names[n] for n in self.held}
        graph = helper.make_graph(
            [node],
            "g",
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                for n, a in given.items()
                if n not in held
            ],
            [onnx.ValueInfoProto(name=r) for r in self.results if r],
            [numpy_helper.from_array(given[n], n) for n in held],
        )
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def inputs(self) -> dict[str, Array]:
        """What the caller passes."""
        return {f"x{n}": a for n, a in enumerate(self.arrays) if a is not None and n not in self.held}


def f(rng: Rng, *shape: int) -> Array:
    """Signed numbers."""
    return rng.standard_normal(shape).astype(np.float32)


def maybe(rng: Rng, made: Callable[[], Array]) -> Array | None:
    """The operand, or none."""
    return made() if rng.random() < 0.6 else None


def ints(rng: Rng, low: int, high: int, *shape: int) -> Array:
    """Whole numbers below `high`."""
    return rng.integers(low, high, shape).astype(np.int32)


def activation(op: str) -> Callable[[Rng], Case]:
    def draw(rng: Rng) -> Case:
        x = f(rng, *rng.integers(1, 5, rng.integers(1, 4))) * 3
        bias = {"BiasGelu": f(rng, x.shape[-1]), "FastGelu": maybe(rng, lambda: f(rng, x.shape[-1]))}.get(op)
        return Case(op, [x] if bias is None else [x, bias])

    return draw


def quick_gelu(rng: Rng) -> Case:
    return Case("QuickGelu", [f(rng, 3, 4)], {"alpha": float(rng.uniform(0.5, 2))} if rng.random() < 0.5 else {})


def split_gelu(rng: Rng) -> Case:
    wide = 2 * int(rng.integers(1, 4))
    return Case("BiasSplitGelu", [f(rng, 2, 3, wide), f(rng, wide)])


def bias_add(rng: Rng) -> Case:
    return Case("BiasAdd", [f(rng, 2, 3, 4), f(rng, 4), f(rng, 2, 3, 4)])


def norm(op: str) -> Callable[[Rng], Case]:
    def draw(rng: Rng) -> Case:
        b, s, h = (int(n) for n in rng.integers(1, 6, 3))
        x = f(rng, b, s, h + 1) * 2
        attributes = {"epsilon": float(rng.choice([1e-5, 1e-3]))} if rng.random() < 0.7 else {}
        if op.endswith("SimplifiedLayerNormalization") and not op.startswith("Skip"):
            return Case(op, [x, f(rng, h + 1)], {"axis": -1, **attributes}, domain="")
        if op == "LayerNormalization":
            return Case(op, [x, f(rng, h + 1), f(rng, h + 1)], {"axis": -1, **attributes}, domain="", opset=12)
        skip = f(rng, *[(b, s, h + 1), (1, s, h + 1), (s, h + 1)][rng.integers(0, 3)])
        bias = maybe(rng, lambda: f(rng, h + 1))
        beta = [maybe(rng, lambda: f(rng, h + 1))] if op == "SkipLayerNormalization" else []
        results = ("y", "", "", "sum") if rng.random() < 0.5 else ("y",)
        return Case(op, [x, skip, f(rng, h + 1), *beta, bias], attributes, results)

    return draw


def gated_norm(rng: Rng) -> Case:
    each, many = int(rng.integers(2, 5)), int(rng.integers(1, 4))
    name = str(rng.choice(["silu", "swish", "sigmoid"]))
    x = (2, 3, each * many)
    return Case("GatedRMSNorm", [f(rng, *x), f(rng, each), f(rng, *x)], {"activation": name, "epsilon": 1e-5})


def embed(rng: Rng) -> Case:
    b, s, h = (int(n) for n in rng.integers(2, 5, 3))
    words, places = ints(rng, 0, 7, b, s), ints(rng, 0, 6, int(rng.choice([1, b])), s)
    segments = maybe(rng, lambda: ints(rng, 0, 2, b, s))
    arrays: list[Array | None] = [words, segments, f(rng, 7, h), f(rng, 6, h)]
    arrays += [None if segments is None else f(rng, 2, h), f(rng, h), f(rng, h)]
    arrays += [maybe(rng, lambda: ints(rng, 0, 2, b, s)), places if rng.random() < 0.5 else None]
    return Case("EmbedLayerNormalization", arrays, {"epsilon": 1e-5}, ("y", "many", "sum"))


def product(op: str) -> Callable[[Rng], Case]:
    def draw(rng: Rng) -> Case:
        m, k, n, b, c = (int(v) for v in rng.integers(1, 5, 5))
        flags = {x: int(rng.integers(0, 2)) for x in ("transA", "transB")}
        left, right = ((k, m) if flags["transA"] else (m, k)), ((n, k) if flags["transB"] else (k, n))
        if op == "FusedGemm":
            name = str(rng.choice(["Relu", "Sigmoid", "Tanh", "LeakyRelu"]))
            c0 = maybe(rng, lambda: f(rng, n))
            also = {"alpha": 0.5, "beta": 2.0, "activation": name, "activation_alpha": 0.1}
            return Case(op, [f(rng, *left), f(rng, *right), c0], {**flags, **also})
        shapes: list[tuple[int, ...]] = [(b, *left), (b, *right)]
        if op == "FusedMatMul" and rng.random() < 0.5:
            c = c + 1
            shapes = [(b, c, *left), (b, c, *right)]
            for n0, x in enumerate("AB"):
                flags[f"transBatch{x}"] = int(rng.integers(0, 2))
                if flags[f"transBatch{x}"]:  # rows, batch, columns
                    shapes[n0] = (shapes[n0][2], b, c, shapes[n0][3])
        elif rng.random() < 0.3:
            shapes[1] = right
        return Case(op, [f(rng, *s) for s in shapes], {**flags, "alpha": float(rng.choice([1.0, 0.25]))})

    return draw


def n_bits(rng: Rng) -> Case:
    bits, block = int(rng.choice([2, 4, 4, 8])), int(rng.choice([16, 32]))
    n, k = int(rng.integers(1, 6)), int(rng.choice([16, 32, 64, 48]))
    blocks = -(-k // block)
    b = rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    zeros: Array | None = None
    if rng.random() < 0.6:
        zeros = rng.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
        if rng.random() < 0.3:
            zeros = (rng.random((n, blocks)) * (1 << bits)).astype(np.float32)
    scales = np.abs(f(rng, n, blocks)) * 0.1
    if rng.random() < 0.5 and (zeros is None or zeros.dtype == np.uint8):  # as older files have them
        scales, zeros = scales.reshape(-1), None if zeros is None else zeros.reshape(-1)
    arrays = [f(rng, 2, k), b, scales, zeros, None, maybe(rng, lambda: f(rng, n))]
    return Case("MatMulNBits", arrays, {"N": n, "K": k, "bits": bits, "block_size": block}, held=(1, 2))


def block_table(rng: Rng) -> Case:
    bits, rows, block = int(rng.choice([4, 8])), 5, 16
    wide = int(rng.choice([16, 32, 48]))
    data = rng.integers(0, 256, (rows, wide * bits // 8)).astype(np.uint8)
    blocks = wide // block
    zeros = maybe(rng, lambda: rng.integers(0, 256, (rows, -(-blocks * bits // 8))).astype(np.uint8))
    places = rng.integers(-rows, rows, (2, 3)).astype(np.int64)
    attributes = {"bits": bits, "block_size": block, "quantize_axis": 1, "gather_axis": 0}
    return Case("GatherBlockQuantized", [data, places, f(rng, rows, blocks), zeros], attributes, held=(0, 2))


def integer_product(rng: Rng) -> Case:
    m, k, n = (int(v) for v in rng.integers(2, 6, 3))
    a, b = rng.integers(0, 256, (m, k)).astype(np.uint8), rng.integers(-128, 128, (k, n)).astype(np.int8)
    columns = rng.random() < 0.5
    scale, zero = (f(rng, n), None) if columns else (f(rng, 1), np.array([3], np.int8))
    return Case("MatMulIntegerToFloat", [a, b, f(rng, 1), scale, np.array([7], np.uint8), zero, f(rng, n)])


def levels(op: str) -> Callable[[Rng], Case]:
    def draw(rng: Rng) -> Case:
        x: Array = f(rng, 2, 5, 3) * 20 if op == "QuantizeLinear" else rng.integers(0, 256, (2, 5, 3)).astype(np.uint8)
        if rng.random() < 0.5:
            return Case(op, [x, np.array(0.5, np.float32), np.array(9, np.uint8)])
        zeros = rng.integers(0, 9, 5).astype(np.uint8)
        return Case(op, [x, (rng.integers(1, 9, 5) / 4).astype(np.float32), zeros], {"axis": 1})

    return draw


def trilu(rng: Rng) -> Case:
    return Case("Trilu", [f(rng, 2, 4, 5), np.array(int(rng.integers(-3, 4)), np.int64)], {"upper": 1}, held=(1,))


def rotary(rng: Rng) -> Case:
    b, s, heads, half = 2, int(rng.integers(1, 4)), int(rng.integers(1, 3)), int(rng.integers(1, 4)) * 4
    size, attributes = 2 * half, {"interleaved": int(rng.integers(0, 2))}
    places = rng.integers(0, 8, (b, s)) if rng.random() < 0.5 else rng.integers(0, 3, 1)
    x = f(rng, b, s, heads * size)
    if rng.random() < 0.4:
        x = f(rng, b, heads, s, size)
    elif rng.random() < 0.5:
        size *= 2
        x = f(rng, b, s, heads * size)
        attributes |= {"num_heads": heads, "rotary_embedding_dim": 2 * half}
    return Case("RotaryEmbedding", [x, places.astype(np.int64), f(rng, 9, half), f(rng, 9, half)], attributes)


def attention(rng: Rng) -> Case:
    b, s, heads, size = 2, int(rng.integers(1, 5)), int(rng.integers(1, 3)), int(rng.integers(1, 4))
    wide, past = heads * size, int(rng.choice([0, 0, 2]))
    total = past + s
    causal = int(rng.integers(0, 2))
    mask = [
        None,
        ints(rng, 0, 2, b, total),
        ints(rng, 1, total + 1, b),
        np.concatenate([ints(rng, total - 1, total + 1, b), ints(rng, 0, 2, b)]),
        ints(rng, 0, 2, b, s, total) if not causal else None,
    ][rng.integers(0, 5)]
    cache = f(rng, 2, b, heads, past, size) if past else None
    scores = f(rng, b, heads, s, total) if not past and rng.random() < 0.3 else None
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": causal}
    if rng.random() < 0.3:
        attributes["scale"] = 0.3
    results = ("y", "present") if past or rng.random() < 0.3 else ("y",)
    # onnxruntime does not survive one without a bias
    arrays = [f(rng, b, s, 6), f(rng, 6, 3 * wide), f(rng, 3 * wide), mask, cache, scores]
    return Case("Attention", arrays, attributes, results)


def multi_head(rng: Rng) -> Case:
    b, s, heads, size = 2, int(rng.integers(1, 5)), int(rng.integers(1, 3)), int(rng.integers(1, 4))
    wide, past = heads * size, int(rng.choice([0, 0, 2]))
    length = s if past or rng.random() < 0.5 else s + 2
    total = past + length
    crossed = not past and rng.random() < 0.25
    kv = [f(rng, b, heads, length, size) if crossed else f(rng, b, length, wide) for _ in range(2)]
    bias = None if crossed else maybe(rng, lambda: f(rng, 3 * wide))
    mask = [None, ints(rng, 0, 2, b, total), ints(rng, 0, 2, b, s, total)][rng.integers(0, 3)]
    old = [f(rng, b, heads, past, size) if past else None for _ in range(2)]
    scores = f(rng, int(rng.choice([1, b])), int(rng.choice([1, heads])), s, total) if rng.random() < 0.4 else None
    causal = int(mask is None and length == s and rng.random() < 0.4)
    results = ("y", "keys", "values") if past else ("y",)
    return Case(
        "MultiHeadAttention",
        [f(rng, b, s, wide), *kv, bias, mask, scores, *old],
        {"num_heads": heads, "unidirectional": causal},
        results,
    )


def group_query(rng: Rng) -> Case:
    shared, repeat, size = int(rng.integers(1, 3)), int(rng.integers(1, 3)), 16
    heads, past = shared * repeat, int(rng.choice([0, 3]))
    b, s = 2, int(rng.integers(2, 5))
    if past:
        b, s = [(2, 1), (1, 1), (1, 1), (1, 2)][rng.integers(4)]
    total = past + s
    packed = rng.random() < 0.4
    if packed:
        given: list[Array | None] = [f(rng, b, s, (heads + 2 * shared) * size), None, None]
    else:
        given = [f(rng, b, s, heads * size), f(rng, b, s, shared * size), f(rng, b, s, shared * size)]
    rotate = int(rng.integers(0, 2))
    angles = [f(rng, 12, size // 2) if rotate else None for _ in range(2)]
    cache = [f(rng, b, shared, past, size) for _ in range(2)]
    attributes = {
        "num_heads": heads,
        "kv_num_heads": shared,
        "do_rotary": rotate,
        "rotary_interleaved": int(rng.integers(0, 2)),
        "softcap": float(rng.choice([0.0, 2.0])),
        "local_window_size": int(rng.choice([-1, -1, 2])),
    }
    lengths = np.full(b, total - 1, np.int32)
    if past and b == 2:
        lengths[1] = rng.integers(s - 1, total)
    sink = f(rng, heads) if rng.random() < 0.3 else None
    scores = f(rng, 1, 1, s, total) if rng.random() < 0.3 else None
    if sink is None and rng.random() < 0.2:
        attributes["smooth_softmax"] = 1
    arrays = [*given, *cache, lengths, np.array(total, np.int32), *angles, None, scores, sink]
    held = (6,) if past and b == 2 else (5, 6)
    return Case("GroupQueryAttention", arrays, attributes, ("y", "keys", "values"), held=held)


def quantised(op: str) -> Callable[[Rng], Case]:
    """Levels of 8 bits, signed or not; scales, zero points, and a product's matrix and bias are the model's."""

    def draw(rng: Rng) -> Case:
        own = np.iinfo(np.uint8 if rng.random() < 0.5 else np.int8)

        def levels(*shape: int) -> Array:
            return rng.integers(own.min, own.max + 1, shape).astype(own.dtype)

        def by() -> list[Array]:
            zero = np.array(rng.integers(own.min + 60, own.max - 60), own.dtype)
            return [np.array(rng.uniform(0.01, 0.08), np.float32), zero]

        arrays: list[Array] = [levels(3, 4), *by()]
        attributes: dict[str, Any] = {}
        match op:
            case "QLinearAdd" | "QLinearMul":
                arrays += [levels(4), *by(), *by()]
            case "QLinearWhere":
                arrays = [rng.random((3, 4)) < 0.5, *arrays, levels(3, 1), *by(), *by()]
            case "QLinearConcat":
                arrays = [*by(), *arrays, levels(3, 2), *by()]
                attributes = {"axis": 1}
            case "QLinearSoftmax":
                arrays += [np.array(1 / 256, np.float32), np.array(own.min, own.dtype)]
                attributes = {"axis": -1, "opset": 13}
            case "QLinearGlobalAveragePool":
                arrays = [levels(2, 3, 4, 5), *by(), *by()]
            case "QGemm":
                bias = rng.integers(-500, 500, 5).astype(np.int32)
                arrays += [levels(5, 4), *by(), bias, *(by() if rng.random() < 0.7 else [])]
                attributes = {"transB": 1}
            case _:
                arrays += by()
                attributes = {"alpha": 0.2} if op == "QLinearLeakyRelu" and rng.random() < 0.5 else {}
        held = [n for n, a in enumerate(arrays) if a.ndim == 0 or (op == "QGemm" and n in (3, 6))]
        return Case(op, arrays, attributes, held=held)

    return draw


DRAWN: Mapping[str, Callable[[Rng], Case]] = {
    **{op: activation(op) for op in ("BiasGelu", "FastGelu", "Gelu")},
    "QuickGelu": quick_gelu,
    "BiasSplitGelu": split_gelu,
    "BiasAdd": bias_add,
    **{op: norm(op) for op in ("LayerNormalization", "SimplifiedLayerNormalization")},
    **{op: norm(op) for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")},
    "GatedRMSNorm": gated_norm,
    "EmbedLayerNormalization": embed,
    **{op: product(op) for op in ("FusedMatMul", "TransposeMatMul", "FusedGemm")},
    "MatMulNBits": n_bits,
    "GatherBlockQuantized": block_table,
    "MatMulIntegerToFloat": integer_product,
    **{op: levels(op) for op in ("QuantizeLinear", "DequantizeLinear")},
    **{op: quantised(op) for op in sorted(NAMES)},
    "Trilu": trilu,
    "RotaryEmbedding": rotary,
    "Attention": attention,
    "MultiHeadAttention": multi_head,
    "GroupQueryAttention": group_query,
}


def theirs(case: Case) -> list[Array]:
    """What onnxruntime computes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    data = case.model().SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return list(session.run([r for r in case.results if r], case.inputs()))


@pytest.fixture(scope="module")
def asked() -> Iterator[Inference]:
    """One process that infers for all tests here."""
    with Inference() as inference:
        yield inference


def by_hand(case: Case) -> list[Array]:
    """What the operators compute that onnxruntime has no kernel of for CPUs."""
    x, bias, *rest = (np.asarray(a, np.float64) for a in case.arrays)
    if case.op == "BiasAdd":
        return [x + bias + rest[0]]
    one, other = np.split(x + bias, 2, axis=-1)
    erf = np.vectorize(__import__("math").erf)
    return [one * other * 0.5 * (1 + erf(other / np.sqrt(2)))]


def test_every_operator_is_drawn() -> None:
    assert set(DRAWN) == {*TRANSLATORS, *NAMES}


@pytest.mark.parametrize("op", DRAWN)
def test_fused_operators_are_what_onnxruntime_computes(op: str) -> None:
    done = 0
    for seed in range(16):
        case = DRAWN[op](np.random.default_rng([seed, len(op)]))
        expected = by_hand(case) if op in CUDA_ALONE else theirs(case)
        program = from_model(case.model(), "g.onnx", None, check=seed < 2)
        found = evaluate(program, {t.name: case.inputs()[t.name] for t in program.arguments})
        for name, want in zip(program.outputs, expected, strict=True):
            assert found[name].shape == want.shape, (seed, case)
            np.testing.assert_allclose(found[name], want, rtol=2e-4, atol=2e-4, err_msg=f"{seed} {name} {case}")
        done += 1
    assert done == 16


def test_quantised_operators_that_are_not_read_say_why() -> None:
    rng = np.random.default_rng(0)
    softmax = quantised("QLinearSoftmax")(rng)
    pool = quantised("QLinearGlobalAveragePool")(rng)
    product = quantised("QGemm")(rng)
    for case, attributes, why in (
        (softmax, {"axis": -1, "opset": 12}, "of an operator set before 13"),
        (pool, {"channels_last": 1}, "channels that come last"),
        (product, {"transB": 1, "alpha": 0.5}, "a factor besides the scales"),
    ):
        with pytest.raises(UnsupportedError, match=why):
            from_model(replace(case, attributes=attributes).model(), "g.onnx", None)
    untold = quantised("QLinearSigmoid")(rng)
    with pytest.raises(UnsupportedError, match="zero point of the result is left out"):
        from_model(replace(untold, arrays=[*untold.arrays[:4], None], held=(1, 2, 3)).model(), "g.onnx", None)


def test_what_onnxruntime_does_not_survive_is_not_compared() -> None:
    rng = np.random.default_rng(3)
    x, w = f(rng, 2, 3, 4), f(rng, 4, 12)
    program = from_model(Case("Attention", [x, w], {"num_heads": 2}).model(), "g.onnx", None)
    assert program.conformance is not None
    assert "not compared: node 'it' (Attention)" in program.conformance.missing
    with_bias = Case("Attention", [x, w, np.zeros(12, np.float32)], {"num_heads": 2})
    found = evaluate(program, {"x0": x, "x1": w})["y"]
    np.testing.assert_allclose(found, theirs(with_bias)[0], rtol=1e-5, atol=1e-5)


def test_attention_of_packed_operands_is_that_of_their_parts() -> None:
    """onnxruntime has it for GPUs alone."""
    rng = np.random.default_rng(4)
    q, k, v = (f(rng, 2, 3, 2, 4) for _ in range(3))
    flat = [x.reshape(2, 3, 8) for x in (q, k, v)]
    bias = f(rng, 24)
    for added in (None, bias):
        want = theirs(Case("MultiHeadAttention", [*flat, added], {"num_heads": 2}))[0]
        for arrays in ([np.stack([q, k, v], 3), None, None, added], [flat[0], np.stack([k, v], 3), None, added]):
            case = Case("MultiHeadAttention", arrays, {"num_heads": 2})
            program = from_model(case.model(), "g.onnx", None, check=False)
            found = evaluate(program, case.inputs())[program.outputs[0]]
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


def test_a_cache_of_a_free_length_is_as_long_as_all_keys_less_the_new_ones() -> None:
    """As decoders are exported, which give the cache and the whole names of their own."""
    float32, int32, int64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64
    inputs: dict[str, tuple[int, list[Any]]] = {
        "q": (float32, ["batch", "seq", 32]),
        **{n: (float32, ["batch", "seq", 16]) for n in ("k", "v")},
        **{n: (float32, ["batch", 1, "past", 16]) for n in ("old_k", "old_v")},
        "mask": (int64, ["batch", "total"]),
    }
    nodes = [
        helper.make_node("ReduceSum", ["mask", "one"], ["many"], keepdims=1),
        helper.make_node("Sub", ["many", "one"], ["less"]),
        helper.make_node("Cast", ["less"], ["ends"], to=int32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "at"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["total_length"], to=int32),
        helper.make_node(
            "GroupQueryAttention",
            ["q", "k", "v", "old_k", "old_v", "ends", "total_length"],
            ["y", "keys", "values"],
            domain=DOMAIN,
            num_heads=2,
            kv_num_heads=1,
        ),
    ]
    held = [numpy_helper.from_array(np.array([1]), "one"), numpy_helper.from_array(np.array(1), "at")]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [onnx.ValueInfoProto(name=n) for n in ("y", "keys", "values")],
        held,
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    built = helper.make_model(graph, opset_imports=imports, ir_version=10)
    program = from_model(built, "g.onnx", None, check=False)
    assert "total" not in program.ranges
    rng = np.random.default_rng(5)
    for b, s, past in ((2, 1, 4), (3, 1, 2), (1, 1, 3)):
        mask = np.ones((b, past + s), np.int64)
        mask[1:, -1:] = 0
        given = {"q": f(rng, b, s, 32), "k": f(rng, b, s, 16), "v": f(rng, b, s, 16), "mask": mask}
        given |= {n: f(rng, b, 1, past, 16) for n in ("old_k", "old_v")}
        session = onnxruntime.InferenceSession(built.SerializeToString(), providers=["CPUExecutionProvider"])
        found = evaluate(program, given)
        for name, want in zip(program.outputs, session.run(None, given), strict=True):
            np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-4, err_msg=f"{name} {b} {past}")


@pytest.mark.parametrize(
    ("op", "arrays", "attributes", "why"),
    [
        ("Attention", [np.ones((2, 3, 4)), np.ones((4, 12)), np.ones(12)], {"num_heads": 2, "do_rotary": 1}, "do_r"),
        ("MatMulNBits", [np.ones((2, 16)), np.ones((4, 1, 6), np.uint8), np.ones((4, 1))],
         {"N": 4, "K": 16, "bits": 3, "block_size": 16}, "3 bits"),
        ("SkipLayerNormalization", [np.ones((2, 3, 4)), np.ones((2, 3, 4)), np.ones(4)], {"unknown": 3}, "unknown"),
    ],
)  # fmt: skip
def test_what_they_say_beside_that_is_refused(
    op: str, arrays: Sequence[Array], attributes: Mapping[str, Any], why: str, tmp_path: Path, asked: Inference
) -> None:
    single = [a if a.dtype == np.uint8 else a.astype(np.float32) for a in arrays]
    built = Case(op, single, attributes).model()
    with pytest.raises(UnsupportedError, match=why) as refused:
        from_model(built, "g.onnx", None)
    assert refused.value.exit_code == ExitCode.UNSUPPORTED
    path = tmp_path / "m.onnx"
    path.write_bytes(built.SerializeToString())
    assert [k.op for k in cut(path, inference=asked).kept.values()] == [f"{DOMAIN}.{op}"]
