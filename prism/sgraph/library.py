"""What of an sGraph a vendor's library can compute as well."""

from __future__ import annotations

from typing import TypeAlias

from prism.sgraph.attention import PlainAttention, plain_attention
from prism.sgraph.nodes import Kernel, SGraph
from prism.sgraph.products import PlainProduct, plain_product

LibraryCall: TypeAlias = PlainProduct | PlainAttention


def library_call(kernel: Kernel, sgraph: SGraph) -> LibraryCall | None:
    """What a library computes in place of the kernel; None when it has nothing for it."""
    return plain_product(kernel, sgraph) or plain_attention(kernel, sgraph)


def library_calls(sgraph: SGraph) -> dict[str, LibraryCall]:
    """The launches of one kernel that a library has something for, by name, in order."""
    lone = {x.name: x.kernels[0] for x in sgraph.launches if len(x.kernels) == 1}
    found = {name: library_call(k, sgraph) for name, k in lone.items()}
    return {name: c for name, c in found.items() if c is not None}
