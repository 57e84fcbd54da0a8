"""Plain matrix products and attention that the library behind torch computes, yielded as a kernel is."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prism.backends.host import tuple_of
from prism.backends.source import HOST
from prism.backends.tile import TileModule
from prism.backends.triton.options.printed import Printed
from prism.program.extents import Extent
from prism.sgraph.library import PlainAttention, Strided, library_calls
from prism.sgraph.nodes import SGraph
from prism.sgraph.products import LIBRARY, View

PRODUCT = '''
class LibraryProduct:
    """A matrix product that the library behind torch computes, launched as a kernel is: product[grid](a, b, out)."""

    def __init__(self, name, relu=False):
        self.__name__ = name
        self.relu = relu

    def __getitem__(self, grid):
        return self

    def __call__(self, lhs, rhs, out, addend=None):
        """out = lhs @ rhs + addend, of matrices or of stacks: summed in float32 and, of float32, without TF32."""
        flags = torch.backends.cuda.matmul
        if lhs.dtype == torch.float32:
            name, wanted = ("fp32_precision", "ieee") if hasattr(flags, "fp32_precision") else ("allow_tf32", False)
        else:
            name = "allow_bf16" if lhs.dtype == torch.bfloat16 else "allow_fp16"
            name, wanted = f"{name}_reduced_precision_reduction", False
        before = getattr(flags, name)
        setattr(flags, name, wanted)
        try:
            if addend is None:
                (torch.mm if lhs.dim() == 2 else torch.bmm)(lhs, rhs, out=out)
            elif self.relu:
                torch._addmm_activation(addend, lhs, rhs, out=out)
            else:
                (torch.addmm if lhs.dim() == 2 else torch.baddbmm)(addend, lhs, rhs, out=out)
        finally:
            setattr(flags, name, before)

    def warmup(self, *args, **meta):
        """There is nothing to compile."""
'''

ATTENTION = '''
class LibraryAttention:
    """Attention by a fused kernel behind torch, launched as a kernel is: attention[grid](q, k, v, out)."""

    def __init__(self, name, scale, causal=False):
        self.__name__ = name
        self.scale = scale
        self.causal = causal

    def __getitem__(self, grid):
        return self

    def __call__(self, query, key, value, out):
        """out = softmax(scale * query @ key.mT) @ value, all [batch, heads, rows, width]; keys may have fewer heads.

        The library allots its result: where `out` is all of a tensor, of any shape, it takes that memory for its own.
        """
        if not query.is_cuda:
            # Fused kernels for CPUs, and torch's own composition, give other rows than NaN where a row is not finite.
            key, value = (t.float().repeat_interleave(query.shape[1] // key.shape[1], 1) for t in (key, value))
            scores = query.float() @ key.mT * self.scale
            if self.causal:
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
            out.view(query.shape).copy_(scores.softmax(-1) @ value)
            return
        kinds = torch.nn.attention.SDPBackend
        order = [kinds.CUDNN_ATTENTION, kinds.FLASH_ATTENTION, kinds.EFFICIENT_ATTENTION, kinds.MATH]
        with torch.nn.attention.sdpa_kernel(order, set_priority=True):
            result = torch.nn.functional.scaled_dot_product_attention(
                query,
                key,
                value,
                is_causal=self.causal,
                scale=self.scale,
                enable_gqa=query.shape[1] != key.shape[1],
            )
        dense = result.is_contiguous() and out.is_contiguous() and result.numel() == out.numel()
        if dense and result.dtype == out.dtype and out._base is None:
            out.set_(result.view(out.shape))
        else:
            out.view(result.shape).copy_(result)

    def warmup(self, *args, **meta):
        """There is nothing to compile."""
'''


class PrintedLibrary(Printed):
    """A choice between the kernel and the library at every launch that a library has something for."""

    option = LIBRARY
    refusal = "no library computes the launch {}"
    names = ("LibraryProduct", "LibraryAttention")

    def possible(self, module: TileModule, sgraph: SGraph) -> Collection[str]:
        """Plain products, and attention."""
        self._sgraph, self._calls = sgraph, library_calls(sgraph)
        fused = [isinstance(c, PlainAttention) for c in self._calls.values()]
        self.source = PRODUCT * (not all(fused)) + "\n" * (len({*fused}) == 2) + ATTENTION * any(fused)
        self.imports = "import torch.nn.attention" * any(fused)
        return self._calls

    def instead(self, launch: str) -> Sequence[str] | None:
        """The call, of the operands and the result as the library sees them."""
        p = self._calls.get(launch)
        if p is None:
            return None
        if isinstance(p, PlainAttention):
            placed = [(v, self._sgraph.tensor(v.tensor)) for v in (p.query, p.key, p.value, p.out)]
            strided = [_strided(self.tensors.host[t.name], v, t.shape) for v, t in placed]
            if not p.copied:
                strided[-1] = self.tensors.host[p.out.tensor]
            causal = ", causal=True" if p.causal else ""
            return [f'LibraryAttention("{launch}", {p.scale!r}{causal})', "(1,)", tuple_of(strided), "{}"]
        views = [_viewed(self.tensors.host[v.tensor], v) for v in (p.lhs, p.rhs, p.out, p.addend) if v is not None]
        relu = ", relu=True" if p.relu else ""
        return [f'LibraryProduct("{launch}"{relu})', "(1,)", tuple_of(views), "{}"]


def _strided(name: str, view: Strided, shape: Sequence[Extent]) -> str:
    """The tensor in four dimensions, as source; nothing is copied."""
    if view.is_whole(shape) and view.sizes == tuple(shape):
        return name
    sizes, strides = (tuple_of([HOST.text(e) for e in group]) for group in (view.sizes, view.strides))
    # An offset of a view counts from where its storage begins: a slice may begin elsewhere.
    offset = HOST.text(view.offset)
    flat = f"{name}.view(-1)[{offset}:]" if offset != "0" else name
    return f"{flat}.as_strided({sizes}, {strides})"


def _viewed(name: str, view: View) -> str:
    """The tensor as a matrix or a stack of them, as source; nothing is copied."""
    text = name
    if view.dropped:
        text += f".squeeze({tuple_of([str(n) for n in view.dropped])})"
    if len(view.order) == 2 and view.order == (1, 0):
        text += ".mT"
    elif view.order != tuple(range(len(view.order))):
        text += f".permute{tuple_of([str(n) for n in view.order])}"
    place = 0
    for n, many in enumerate(view.groups):
        if many == 0 and n > 0:
            text += f".unsqueeze({place})"
        elif many > 1:
            text += f".flatten({place}, {place + many - 1})"
        place += 1 if n or many else 0
    return text
