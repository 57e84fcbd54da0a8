"""The sGraph of an output folder, and whether it computes what the certificate's proof ends with.

The file holds the sGraph as plain data. Whoever checks the folder reads it, works out its denotation anew, and compares
that with the end of the proof; nothing of what the run said about itself is used. The sGraph of a program of several
regions is proved region by region, over the tensors between them: so it is read region by region, too. A loop's step is
read as any region is, over its windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from prism.errors import IllegalIRError, UsageError
from prism.program.nodes import Expr
from prism.sgraph import spec
from prism.sgraph.denote import denote
from prism.sgraph.nodes import Kernel, SGraph
from prism.sgraph.record import plain, sgraph_of

NAME = "sgraph.json"
SCHEMA = "prism.sgraph/1"


def written(sgraph: SGraph) -> str:
    """The file's text."""
    body = msgspec.json.encode({"schema": SCHEMA, "sgraph": plain(sgraph)})
    return msgspec.json.format(body, indent=1).decode() + "\n"


def read(data: bytes) -> SGraph:
    """The sGraph of a file's bytes, checked to be a legal one.

    Raises:
        UsageError: it is no such file.
        IllegalIRError: the sGraph is not legal.
    """
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"not a {SCHEMA} record", where=NAME, why=str(error)) from error
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise UsageError(f"not a {SCHEMA} record", where=NAME, fix="run prism optimize again")
    found = sgraph_of(body.get("sgraph"))
    spec.check(found)
    return found


def denoted(sgraph: SGraph, outputs: Sequence[str]) -> list[Expr]:
    """What the sGraph stores in these tensors, over its inputs and over the others of these.

    Raises:
        IllegalIRError: it has no denotation, or stores nothing there.
    """
    if [t.name for t in sgraph.outputs] == list(outputs) and not sgraph.repeats:
        return list(denote(sgraph).outputs)
    return [_one(sgraph, name, frozenset(outputs)) for name in outputs]


def _one(sgraph: SGraph, output: str, handed: frozenset[str]) -> Expr:
    """What is stored in one tensor: the kernels between it and the tensors that are handed over."""
    writer = {name: k for k in sgraph.kernels for name in k.writes}
    if output not in writer:
        raise IllegalIRError(f"no kernel stores {output}", where=sgraph.name)
    needed: set[str] = set()
    stack = [writer[output]]
    while stack:
        kernel = stack.pop()
        if kernel.name not in needed:
            needed.add(kernel.name)
            stack += [writer[t] for t in kernel.reads if t in writer and t not in handed]
    kernels: list[Kernel] = [k for k in sgraph.kernels if k.name in needed]
    stored = {name for k in kernels for name in k.writes}
    read_here = {name for k in kernels for name in k.reads}
    known = sgraph.tensors.values()
    inputs = tuple(t for t in known if t.name in read_here and t.name not in stored)
    part = replace(
        sgraph,
        inputs=inputs,
        buffers=tuple(t for t in known if t.name in stored and t.name != output),
        outputs=(sgraph.tensor(output),),
        kernels=tuple(kernels),
        together=(),
        repeats=(),
    )
    return denote(part).outputs[0]
