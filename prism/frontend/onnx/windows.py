"""ONNX operators over windows: what their attributes say; what they compute is in `prism.frontend.windows`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from prism.frontend import windows
from prism.frontend.onnx.graph import Graph, Node, OnnxValue, Operand, Translator
from prism.frontend.windows import Margin, Pool
from prism.program.extents import Extent, add, at_most, cdiv, is_static, mul
from prism.program.fold import op
from prism.program.index import Axis, Index
from prism.program.nodes import Const, DType, Expr
from prism.program.views import Shape, axes_of, same_extent
from prism.program.windows import Window


def _each(node: Node, name: str, spatial: int, default: int) -> list[int]:
    """A list attribute with one number for each spatial dimension."""
    found = [int(n) for n in node.attributes.get(name, ())] or [default] * spatial
    if len(found) != spatial:
        raise node.shape_error(f"{name} has {len(found)} numbers for {spatial} spatial dimensions")
    return found


def _pads(node: Node, spatial: int) -> list[tuple[int, int]]:
    """What is put before and behind each spatial dimension."""
    found = [int(n) for n in node.attributes.get("pads", ())] or [0] * (2 * spatial)
    if len(found) != 2 * spatial:
        raise node.shape_error(f"pads has {len(found)} numbers for {spatial} spatial dimensions")
    return list(zip(found[:spatial], found[spatial:], strict=True))


def _windows(graph: Graph, node: Node, extents: Sequence[Extent], taps: Sequence[Extent]) -> list[Window]:
    """The windows that strides, dilations, pads and auto_pad say."""
    spatial = len(extents)
    strides, dilations = _each(node, "strides", spatial, 1), _each(node, "dilations", spatial, 1)
    if any(n < 1 for n in (*strides, *dilations)):
        raise node.faulty("a stride or a dilation is less than 1", fix="export it again")
    pads, auto = _pads(node, spatial), _auto(node)
    if auto != "NOTSET" and any(a or b for a, b in pads):
        raise node.unsupported(
            f"both pads and auto_pad = {auto} are given", why="an operator has one of them", fix="remove one"
        )
    made = []
    for extent, tap, stride, dilation, (before, after) in zip(extents, taps, strides, dilations, pads, strict=True):
        window = Window(extent, tap, stride, dilation, before, after)
        if auto.startswith("SAME"):
            low, high = _same(node, window, upper=auto == "SAME_UPPER")
            window = Window(extent, tap, stride, dilation, low, high)
        if not graph.require(window.room):
            raise node.unsupported(
                f"windows of {window.reach} places do not fit a dimension of {extent} with {before + after} around it",
                fix="export with larger inputs, or with that dimension fixed",
            )
        made.append(window)
    return made


def _same(node: Node, window: Window, *, upper: bool) -> tuple[int, int]:
    """Padding by which there is a window for each stride."""
    needed = add(mul(add(cdiv(window.extent, window.stride), -1), window.stride), window.reach)
    total = add(needed, mul(-1, window.extent))
    if not is_static(total):
        raise node.unsupported(
            f"how much a dimension of {window.extent} elements is padded depends on the sizes",
            fix="export with that dimension fixed, or with pads in place of auto_pad",
        )
    return _halves(max(int(total), 0), upper=upper)


def _auto(node: Node) -> str:
    """How an operator's padding follows from its windows, if it does."""
    auto = str(node.attributes.get("auto_pad", "NOTSET"))
    if auto not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise node.faulty(f"auto_pad is {auto!r}", fix="export it again")
    return auto


def _halves(total: int, *, upper: bool) -> tuple[int, int]:
    """So many places before and behind, of an odd number one more on the upper side, or the lower one."""
    return (total // 2, total - total // 2) if upper else (total - total // 2, total // 2)


def _image(node: Node, value: OnnxValue) -> Shape:
    """The spatial dimensions of [batch, channels, ...]."""
    if value.rank < 3:
        raise node.shape_error(f"an operand of {value.rank} dimensions", why="it needs a batch, channels and a place")
    return value.shape[2:]


# Convolution


def _kernel(node: Node, x: OnnxValue, w: OnnxValue) -> Shape:
    """The extents of the taps."""
    _image(node, x)
    if w.rank != x.rank:
        raise node.shape_error(f"weights of {w.rank} dimensions for an operand of {x.rank}")
    taps = w.shape[2:]
    told = node.attributes.get("kernel_shape", ())
    if told and not all(same_extent(a, b) for a, b in zip(told, taps, strict=True)):
        raise node.shape_error(f"kernel_shape is {list(told)}, and the weights have {list(taps)}")
    return taps


def _groups(node: Node, whole: Extent) -> int:
    """How many groups there are, into which the channels split."""
    groups = node.integer("group")
    if groups < 1 or (groups > 1 and not (isinstance(whole, int) and whole % groups == 0)):
        raise node.shape_error(f"{whole} channels do not make up {groups} groups")
    return groups


def convolution(
    graph: Graph, node: Node, x: OnnxValue, w: OnnxValue, read: Operand, weight: Operand
) -> tuple[list[Axis], Expr]:
    """The axes and the element of the convolution that a node's attributes say."""
    taps = _kernel(node, x, w)
    groups = _groups(node, w.shape[0])
    what = f"weights for {groups} groups of {w.shape[1]} channels, and there are {x.shape[1]}"
    node.agree([(mul(w.shape[1], groups), x.shape[1])], what)
    lie = _windows(graph, node, _image(node, x), taps)
    axes = list(axes_of((x.shape[0], w.shape[0], *(window.count() for window in lie))))
    return axes, windows.convolution(read, weight, axes, lie, groups)


def _conv(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x, w = node.input(0), node.input(1)
    axes, value = convolution(graph, node, x, w, graph.operand(x), graph.operand(w))
    return [graph.define(node, axes, _biased(graph, node, value, axes[1]), x.dtype)]


def _biased(graph: Graph, node: Node, value: Expr, channel: Axis) -> Expr:
    bias = node.optional(2)
    if bias is None:
        return value
    if bias.rank != 1 or not same_extent(bias.shape[0], channel.extent):
        raise node.shape_error(f"a bias of shape {list(bias.shape)} for {channel.extent} channels")
    return op("add", value, graph.at(bias, [Index.axis(channel)]))


def _conv_transpose(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x, w = node.input(0), node.input(1)
    taps, image = _kernel(node, x, w), _image(node, x)
    groups = _groups(node, x.shape[1])
    node.agree([(w.shape[0], x.shape[1])], f"weights for {w.shape[0]} channels, and there are {x.shape[1]}")
    spatial = len(image)
    strides, dilations = _each(node, "strides", spatial, 1), _each(node, "dilations", spatial, 1)
    extra, pads = _each(node, "output_padding", spatial, 0), _pads(node, spatial)
    if any(n < 1 for n in (*strides, *dilations)) or any(n < 0 for n in extra):
        raise node.faulty("a stride, a dilation or an output padding is too small", fix="export it again")
    auto = _auto(node)
    wanted: list[Extent] | None = None
    if "output_shape" in node.attributes:
        wanted = list(_each(node, "output_shape", spatial, 0))
    if auto.startswith("SAME") and wanted is None:
        wanted = [mul(e, s) for e, s in zip(image, strides, strict=True)]
    if (auto != "NOTSET" or wanted is not None) and any(a or b for a, b in pads):
        raise node.unsupported("pads are given where auto_pad or output_shape say them", fix="remove them")
    lie, out = [], []
    for d, (extent, tap, stride, dilation) in enumerate(zip(image, taps, strides, dilations, strict=True)):
        window = Window(extent, tap, stride, dilation)
        full = add(add(mul(add(extent, -1), stride), window.reach), extra[d])
        before, after = pads[d]
        if wanted is not None:
            before, after = _surplus(node, add(full, mul(-1, wanted[d])), auto)
        lie.append(Window(extent, tap, stride, dilation, before, after))
        out.append(add(full, -before - after))
    axes = axes_of((x.shape[0], mul(w.shape[1], groups), *out))
    value = windows.transposed_convolution(graph.operand(x), graph.operand(w), axes, lie, groups)
    return [graph.define(node, axes, _biased(graph, node, value, axes[1]), x.dtype)]


def _surplus(node: Node, total: Extent, auto: str) -> tuple[int, int]:
    """What is cut off at both ends of a transposed convolution for the shape that is wanted."""
    if not is_static(total):
        raise node.unsupported("its padding depends on the sizes", fix="export with that dimension fixed")
    if int(total) < 0 and auto != "NOTSET":
        raise node.unsupported(
            f"auto_pad = {auto} asks for more places than windows reach", why="runtimes differ about what is there"
        )
    if int(total) < 0:
        return 0, int(total)
    return _halves(int(total), upper=auto == "SAME_UPPER")


# Pooling


def _pooled(graph: Graph, node: Node, x: OnnxValue) -> tuple[tuple[Axis, ...], list[Window], Pool]:
    image = _image(node, x)
    taps = [int(n) for n in node.attributes["kernel_shape"]]
    if len(taps) != len(image) or any(n < 1 for n in taps):
        raise node.shape_error(f"kernel_shape is {taps} for {len(image)} spatial dimensions")
    lie = _windows(graph, node, image, taps)
    ceil = node.flag("ceil_mode")
    if ceil and not all(w.stride == 1 or (isinstance(w.extent, int)) for w in lie):
        raise node.unsupported("how many windows there are depends on the sizes", fix="export it without ceil_mode")
    auto = _auto(node)
    if (auto == "VALID" and ceil) or (auto.startswith("SAME") and any(w.dilation > 1 for w in lie)):
        said = "ceil_mode" if ceil else "dilations"
        raise node.unsupported(
            f"both auto_pad = {auto} and {said} are given",
            why="runtimes differ about how many windows that makes",
            fix="export it with pads",
        )
    axes = axes_of((*x.shape[:2], *(w.count(ceil=ceil) for w in lie)))
    return axes, lie, windows.pool(graph.operand(x), axes, lie)


def _refuse_empty_windows(node: Node, axes: Sequence[Axis], lie: Sequence[Window]) -> None:
    if not all(w.meets(a.extent) for w, a in zip(lie, axes[2:], strict=True)):
        raise node.unsupported(
            "a window may hold nothing but padding", why="runtimes differ about what is in it", fix="pad less"
        )


def _average_pool(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x = node.input(0)
    axes, lie, pooled = _pooled(graph, node, x)
    _refuse_empty_windows(node, axes, lie)
    divisor = windows.with_padding(axes, lie) if node.flag("count_include_pad") else None
    return [graph.define(node, axes, windows.average(pooled, divisor), x.dtype)]


def _max_pool(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x = node.input(0)
    node.attributes.get("storage_order")  # of the second result, which check_all_read refuses
    axes, lie, pooled = _pooled(graph, node, x)
    _refuse_empty_windows(node, axes, lie)
    return [graph.define(node, axes, windows.largest(pooled, x.dtype), x.dtype)]


def _lp_pool(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x = node.input(0)
    axes, _, pooled = _pooled(graph, node, x)
    return [graph.define(node, axes, windows.length(pooled, _order(node)), x.dtype)]


def _order(node: Node) -> int:
    p = node.integer("p")
    if p < 1:
        raise node.faulty(f"the norm is of order {p}", fix="use an order of 1 or more")
    return p


def _global(combine: Callable[[Node, Pool, DType], Expr], graph: Graph, node: Node) -> Sequence[OnnxValue]:
    """All of each channel pooled."""
    x = node.input(0)
    image = _image(node, x)
    axes = axes_of((*x.shape[:2], *[1] * len(image)))
    whole = [Window(e, e) for e in image]
    pooled = windows.pool(graph.operand(x), axes, whole)
    return [graph.define(node, axes, combine(node, pooled, x.dtype), x.dtype)]


# Padding


def _pad(graph: Graph, node: Node) -> Sequence[OnnxValue]:
    x = node.input(0)
    told = node.listed("pads", 1, "the padding")
    if told is None:
        raise node.shape_error("no padding is given")
    numbers = told.ravel().tolist()
    dims = list(range(x.rank))
    if node.version >= 18 and node.optional(3) is not None:
        dims = [node.wrap(d, x.rank) for d in node.integers(3, "the list of axes")]
    if len(numbers) != 2 * len(dims) or len(set(dims)) != len(dims):
        raise node.shape_error(f"{len(numbers)} numbers of padding for {len(dims)} dimensions")
    margins = [Margin(e, 0, 0) for e in x.shape]
    for place, d in enumerate(dims):
        margins[d] = Margin(x.shape[d], numbers[place], numbers[place + len(dims)])
    axes = axes_of([m.total for m in margins])
    mode = str(node.attributes["mode"])
    read = graph.operand(x)
    match mode:
        case "constant":
            value = windows.filled(read, axes, margins, _fill(graph, node))
        case "reflect":
            _refuse_wide(node, margins, -1)
            value = windows.padded(read, axes, margins, windows.reflected)
        case "edge":
            _refuse_wide(node, margins, None)
            value = windows.padded(read, axes, margins, windows.repeated)
        case "wrap":
            _refuse_wide(node, margins, 0)
            value = windows.padded(read, axes, margins, windows.wrapped)
        case _:
            raise node.unsupported(f"the mode {mode!r} is not known")
    if mode != "constant" and node.optional(2) is not None:
        node.input(2)  # says something of the mode `constant` alone
    return [graph.define(node, axes, value, x.dtype)]


def _fill(graph: Graph, node: Node) -> Expr:
    if node.version < 11:
        return Const(node.number("value"))
    fill = node.optional(2)
    if fill is None:
        return Const(0.0)
    if fill.rank and fill.shape != (1,):
        raise node.shape_error(f"a number of shape {list(fill.shape)} to pad with")
    return graph.at(fill, [Index.const(0)] * fill.rank)


def _refuse_wide(node: Node, margins: Sequence[Margin], most: int | None) -> None:
    """Refuse padding of which a piece is not the dimension's own, its image or its like.

    `margins` are put around each dimension; padding may be longer than the dimension by `most` at most, None where it
    may be any.
    """
    for m in margins:
        for e in (m.before, m.after):
            negative = not at_most(0, e)
            if most is not None and not negative and not at_most(e, add(m.extent, most)):
                raise node.unsupported(
                    f"{e} places of padding beside a dimension of {m.extent}", why="it is not known to be long enough"
                )
            if negative and not (isinstance(e, int) and isinstance(m.extent, int)):
                raise node.unsupported(f"{e} places of padding in this mode", fix="slice before the padding")
        negatives = [e for e in (m.before, m.after) if isinstance(e, int) and e < 0]
        if negatives and any(isinstance(e, int) and e > 0 for e in (m.before, m.after)):
            raise node.unsupported(
                "a dimension is cut at one end and padded at the other",
                why="which comes first is not said",
                fix="slice it in a node of its own",
            )


TRANSLATORS: Mapping[str, Translator] = MappingProxyType(
    {
        "Conv": _conv,
        "ConvTranspose": _conv_transpose,
        "AveragePool": _average_pool,
        "MaxPool": _max_pool,
        "LpPool": _lp_pool,
        "GlobalAveragePool": partial(_global, lambda _, p, __: windows.average(p)),
        "GlobalMaxPool": partial(_global, lambda _, p, dtype: windows.largest(p, dtype)),
        "GlobalLpPool": partial(_global, lambda node, p, _: windows.length(p, _order(node))),
        "Pad": _pad,
    }
)
