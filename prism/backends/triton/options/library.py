"""Plain matrix products that the library behind torch computes, yielded as a kernel is."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prism.backends.host import tuple_of
from prism.backends.tile import TileModule
from prism.backends.triton.options.printed import Printed
from prism.sgraph.nodes import SGraph
from prism.sgraph.products import LIBRARY, View, plain_products

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


class PrintedLibrary(Printed):
    """A choice between the kernel and the library at every plain product."""

    option = LIBRARY
    refusal = "no library computes the launch {}"
    source = PRODUCT
    names = ("LibraryProduct",)

    def possible(self, module: TileModule, sgraph: SGraph) -> Collection[str]:
        """Plain products."""
        self._products = plain_products(sgraph)
        return self._products

    def instead(self, launch: str) -> Sequence[str] | None:
        """The product, of the operands and the result as the library sees them."""
        p = self._products.get(launch)
        if p is None:
            return None
        views = [_viewed(self.tensors.host[v.tensor], v) for v in (p.lhs, p.rhs, p.out, p.addend) if v is not None]
        relu = ", relu=True" if p.relu else ""
        return [f'LibraryProduct("{launch}"{relu})', "(1,)", tuple_of(views), "{}"]


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
