"""Horizontal fusion: independent kernels in one launch, whose programs are divided among them by program id.

A launch of several kernels saves the others' launch overhead, fills a device that none of them fills alone, and has
what they all read come from DRAM once. Nothing of what they compute changes, so neither does the denotation. Each
program runs one kernel's body, but registers and shared memory are allotted for the most that any body needs, and all
run with the same number of warps.

Kernels may be launched together when none depends on another, directly or through a third: then they can stand next to
each other in launch order. `fusable` finds such groups, `fuse` makes an sGraph of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NoReturn, TypeAlias

from prism.errors import IllegalIRError
from prism.sgraph.nodes import Kernel, SGraph

Group: TypeAlias = "tuple[str, ...]"


def fusable(sgraph: SGraph, *, sharing: bool = True) -> list[Group]:
    """Groups of kernels that can be launched together, and are not yet: disjoint, so that all of them can be fused.

    Each group is the first kernel in launch order that is in no group, with all later ones that may join it. What runs
    once, before any call, is launched by itself.

    Args:
        sgraph: a legal sGraph.
        sharing: whether a kernel only joins where it loads a tensor that a member loads, too.

    Returns:
        names of kernels, two or more a group, in launch order; `fuse` takes them one after another.
    """
    groups: list[Group] = list(sgraph.together)
    taken = {name for group in groups for name in group} | sgraph.prepared
    found: list[Group] = []
    for n, first in enumerate(sgraph.kernels):
        if first.name in taken:
            continue
        group: Group = (first.name,)
        loaded = set(first.reads)
        for other in sgraph.kernels[n + 1 :]:
            if other.name in taken or (sharing and loaded.isdisjoint(other.reads)):
                continue
            if _ordered(sgraph, [*groups, (*group, other.name)]) is not None:
                group = (*group, other.name)
                loaded.update(other.reads)
        if len(group) > 1:
            groups.append(group)
            found.append(group)
            taken.update(group)
    return found


def fuse(sgraph: SGraph, group: Iterable[str]) -> SGraph:
    """The sGraph with these kernels in one launch; others move behind or before it where they must.

    Args:
        sgraph: a legal sGraph.
        group: names of two or more of its kernels, in any order.

    Raises:
        IllegalIRError: there is no such kernel, it is in a group already, or one depends on another.
    """
    members = set(group)
    own = tuple(k.name for k in sgraph.kernels if k.name in members)
    where = f"sGraph {sgraph.name}"
    if len(own) != len(members) or len(own) < 2:
        _fail(f"{_listed(sorted(members))} are not two or more of its kernels", where)
    for other in sgraph.together:
        if not members.isdisjoint(other):
            _fail(f"{_listed(other)} are launched together already", where)
    groups = [*sgraph.together, own]
    ordered = _ordered(sgraph, groups)
    if ordered is None:
        why = _reason(sgraph, own) or "one depends on another through a kernel that would have to run between them"
        _fail(f"{_listed(own)} cannot be launched together", where, why)
    place = {k.name: n for n, k in enumerate(ordered)}
    return replace(sgraph, kernels=ordered, together=tuple(sorted(groups, key=lambda g: place[g[0]])))


def check_together(sgraph: SGraph) -> None:
    """What `SGraph.together` says is legal: known kernels, each in one group, adjacent, and independent.

    Raises:
        IllegalIRError: it is not.
    """
    where = f"sGraph {sgraph.name}"
    place = {k.name: n for n, k in enumerate(sgraph.kernels)}
    seen: set[str] = set()
    for group in sgraph.together:
        for name in group:
            if name not in place:
                _fail(f"{name} is to be launched with others and is no kernel", where)
            if name in seen:
                _fail(f"kernel {name} is launched twice", where)
            seen.add(name)
        if len(group) < 2:
            _fail(f"the group of {group} is no group", where)
        if any(place[b] != place[a] + 1 for a, b in pairwise(group)):
            _fail(f"{_listed(group)} are launched together and are not adjacent in launch order", where)
        reason = _reason(sgraph, group)
        if reason:
            _fail(f"{_listed(group)} cannot be launched together", where, reason)


def _fail(what: str, where: str, why: str = "") -> NoReturn:
    raise IllegalIRError(
        what, where=where, why=why, fix="launch only kernels together that do not depend on each other"
    )


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names)


def _feeds(producer: Kernel, consumer: Kernel) -> str | None:
    """A tensor that one kernel stores and the other loads, if any."""
    stored = producer.writes
    return next((t for t in consumer.reads if t in stored), None)


def _reason(sgraph: SGraph, group: Sequence[str]) -> str:
    """Why the kernels depend on each other; empty when no one directly depends on another."""
    members = [k for k in sgraph.kernels if k.name in group]
    for a in members:
        for b in members:
            tensor = _feeds(a, b)
            if tensor is not None:
                return f"{b.name} loads {tensor}, which {a.name} stores"
    return ""


def _ordered(sgraph: SGraph, groups: Sequence[Group]) -> tuple[Kernel, ...] | None:
    """The kernels with every group in one place, otherwise in the order in which they were; None where none is legal.

    Each group is taken as one node; the nodes are sorted topologically, of those that may come next the one that
    begins first.
    """
    group_of = {name: group for group in groups for name in group}
    nodes: dict[Group, list[Kernel]] = {}
    for kernel in sgraph.kernels:
        nodes.setdefault(group_of.get(kernel.name, (kernel.name,)), []).append(kernel)
    needs: dict[Group, set[Group]] = {
        node: {other for other, theirs in nodes.items() if any(_feeds(a, b) for a in theirs for b in mine)}
        for node, mine in nodes.items()
    }
    ordered: list[Kernel] = []
    left = dict(nodes)
    while left:
        ready = next((node for node in left if needs[node].isdisjoint(left)), None)
        if ready is None:
            return None
        ordered += left.pop(ready)
    return tuple(ordered)
