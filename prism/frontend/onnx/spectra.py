"""Fourier transforms of known length: products with a matrix of cosines and sines, which is a weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from prism.frontend.onnx.dtypes import constant
from prism.frontend.onnx.graph import Graph, Node, OnnxValue, Translator
from prism.program import build
from prism.program.extents import Extent, add, cdiv, is_static
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Expr, ReduceKind
from prism.program.views import axes_of

MAX_MATRIX = 2**21
"""The largest matrix of a transform, in elements: of longer signals a fast transform is faster on any machine."""


def _matrix(
    node: Node, taken: int, length: int, made: int, parts: tuple[int, int], dtype: DType, *, inverse: bool = False
) -> OnnxValue:
    """What an element of the signal adds to one of what is made of it: [taken, its parts, made, their parts].

    Args:
        node: the node.
        taken: how many elements of the signal there are; zeros follow them.
        length: of the transform.
        made: how many elements are made, the first ones.
        parts: of the signal's elements and of those that are made: 1 of real numbers, 2 of complex ones.
        dtype: the signal's.
        inverse: whether it is the inverse transform; what it makes real numbers of is half of a spectrum, the other
            half of which is its mirror image.
    """
    if taken * made * parts[0] * parts[1] > MAX_MATRIX:
        raise node.unsupported(f"a transform of length {length} is faster by a fast one, which is no product")
    turn = np.outer(np.arange(taken), np.arange(made)) % length * (2 * np.pi / length)
    cos, sin = np.cos(turn), np.sin(turn) * (1 if inverse else -1)
    whole = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], 1) / (length if inverse else 1)
    if inverse and parts[1] == 1:
        whole *= np.where(np.arange(taken) * 2 % length == 0, 1, 2)[:, None, None, None]
    held = DType.FLOAT64 if dtype is DType.FLOAT64 else DType.FLOAT32
    return constant(whole[:, : parts[0], :, : parts[1]].astype(held.value), held, f"{node.label}_matrix")


def _summed(graph: Graph, matrix: OnnxValue, element: Callable[[Index, Index], Expr], at: Index, part: Index) -> Expr:
    """The sum over the signal; `element(n, p)` is one of its numbers."""
    n, p = Axis("n", matrix.shape[0]), Axis("p", matrix.shape[1])
    here, which = Index.axis(n), Index.const(0) if matrix.shape[1] == 1 else Index.axis(p)
    term = op("mul", element(here, which), graph.at(matrix, [here, which, at, part]))
    total = build.reduce(ReduceKind.SUM, n, term)
    return total if matrix.shape[1] == 1 else build.reduce(ReduceKind.SUM, p, total)


def _parts(node: Node, x: OnnxValue) -> int:
    if x.rank < 2 or x.shape[-1] not in (1, 2):
        raise node.shape_error(f"the last dimension of a signal has 1 or 2 elements, and is {x.shape[-1:]}")
    return int(x.shape[-1])


def _fixed(node: Node, extent: Extent) -> int:
    if not is_static(extent) or int(extent) < 1:
        raise node.unsupported(f"a transform of length {extent} has no matrix", fix="export it with a fixed length")
    return int(extent)


def _dft(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x, parts = node.input(0), _parts(node, node.input(0))
    if node.version < 20:
        axis = node.axis("axis", x.rank)
    else:
        axis = node.wrap(node.integers(2, "the axis")[0] if node.optional(2) is not None else -2, x.rank)
    if axis == x.rank - 1:
        raise node.shape_error("the last dimension of a signal is that of its parts")
    inverse, half = node.flag("inverse"), node.flag("onesided")
    if half and inverse == (parts == 1):
        raise node.unsupported("half of a spectrum is of real numbers, and only of those it is enough")
    size = _fixed(node, x.shape[axis])
    given = node.integers(1, "the length") if node.optional(1) is not None else []
    length = _fixed(node, given[0] if given else 2 * (size - 1) if half and inverse else size)
    taken, made = (length // 2 + 1 if half and one else length for one in (inverse, not inverse))
    results = 1 if half and inverse else 2
    matrix = _matrix(node, min(size, taken), length, made, (parts, results), x.dtype, inverse=inverse)
    axes = axes_of([*(made if d == axis else e for d, e in enumerate(x.shape[:-1])), results])
    places = [Index.axis(a) if a.extent != 1 else Index.const(0) for a in axes]

    def element(n: Index, p: Index) -> Expr:
        return graph.at(x, [*places[:axis], n, *places[axis + 1 : -1], p])

    return [graph.define(node, axes, _summed(graph, matrix, element, places[axis], places[-1]), x.dtype)]


def _stft(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x, window = node.input(0), node.optional(2)
    parts = _parts(node, x) if x.rank == 3 else 1
    step = _fixed(node, node.integers(1, "the step")[0])
    lengths = [_fixed(node, node.integers(3, "the length")[0])] if node.optional(3) is not None else []
    if window is not None:
        lengths.append(_fixed(node, window.shape[0] if window.rank == 1 else 0))
    if x.rank not in (2, 3) or not lengths or len(set(lengths)) > 1:
        raise node.shape_error(f"frames of {lengths} of a signal of {x.rank} dimensions")
    length, half = lengths[0], node.flag("onesided")
    if half and parts == 2:
        raise node.unsupported("half of a spectrum is of real numbers, and only of those it is enough")
    made = length // 2 + 1 if half else length
    matrix = _matrix(node, length, length, made, (parts, 2), x.dtype)
    room = add(x.shape[1], -length)
    if not graph.require(room):
        raise node.shape_error(f"a signal of {x.shape[1]} elements has no frame of {length}")
    axes = axes_of((x.shape[0], cdiv(add(room, 1), step), made, 2))
    batch, frame, at, part = (Index.axis(a) for a in axes)

    def element(n: Index, p: Index) -> Expr:
        number = graph.at(x, [batch, frame.scaled(step) + n, *([p] if x.rank == 3 else [])])
        return number if window is None else op("mul", number, graph.at(window, [n]))

    return [graph.define(node, axes, _summed(graph, matrix, element, at, part), x.dtype)]


TRANSLATORS: Mapping[str, Translator] = MappingProxyType({"DFT": _dft, "STFT": _stft})
