"""Nodes that state their own grammar, and the walks and rewrites that follow from it.

A node is a dataclass, and the type of a field says what it holds:

    @dataclass(frozen=True, slots=True)
    class Select:
        dst: Defined                                      # a value's name, given here
        mask: Used                                        # a value's name, read here
        otherwise: float                                  # no name: left alone
        index: tuple[Annotated[Index, Holds.INDEX], ...]   # each element is one
        offset: Affine                                    # a part with fields of its own: they count as the node's
        body: tuple[Annotated[Stmt, Holds.BODY], ...]      # for `statements` and `rewrite` alone

A representation's operands, renamings, copies under other names and dead code follow from that, so a new kind of node
is a class and what is particular to it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from typing import Annotated, Any, ParamSpec, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

N = TypeVar("N")
P = ParamSpec("P")
R = TypeVar("R")


class Holds(Enum):
    """What stands in a field, or in each element of it."""

    DEFINES = "the name of a value, given here"
    CHANGES = "the name of a value that is read and given anew: an accumulator"
    USES = "the name of a value that is read, or a number in its place"
    BINDS = "the name of an integer that the body may mention"
    TENSOR = "the name of a tensor"
    AXIS = "an axis"
    INDEX = "an affine index over axes"
    INTEGER = "an integer expression over names"
    SCALAR = "the name of an integer that is read"
    BODY = "a statement inside"

    __hash__ = (
        object.__hash__
    )  # one object a member; the Enum's own hash is no built-in, and is asked for at every node


Defined: TypeAlias = Annotated[str, Holds.DEFINES]
Changed: TypeAlias = Annotated[str, Holds.CHANGES]
Used: TypeAlias = Annotated[str, Holds.USES]

_Collect: TypeAlias = Callable[[Any, list[Any]], None]
_Change: TypeAlias = Callable[[Any, Mapping[Holds, Callable[[Any], Any]]], Any]


def free_name(name: str, taken: set[str]) -> str:
    """The name, or one like it that is not taken; it is then."""
    new, n = name, 1
    while new in taken:
        n += 1
        new = f"{name}_{n}"
    taken.add(new)
    return new


def parts(node: object, *kinds: Holds) -> list[Any]:
    """What stands in the node's fields in places of these kinds, in the order of the fields; None is left out."""
    found: list[Any] = []
    for name, collect in _collectors(type(node), kinds):
        collect(getattr(node, name), found)
    return found


def names(node: object, *kinds: Holds) -> tuple[str, ...]:
    """The names that stand in the node's fields in places of these kinds, in the order of the fields."""
    return tuple([n for n in parts(node, *kinds) if isinstance(n, str)])


def operands(node: object) -> tuple[str, ...]:
    """The names of values that a node reads, in order; an accumulator's own value is one."""
    return names(node, Holds.CHANGES, Holds.USES)


def sources(node: object) -> tuple[str, ...]:
    """The same without the accumulator that a node changes: what it takes from elsewhere."""
    return names(node, Holds.USES)


def defined(node: object) -> str | None:
    """The name that a node gives a value to, if any."""
    return next(iter(names(node, Holds.DEFINES, Holds.CHANGES)), None)


def mapped(node: N, changes: Mapping[Holds, Callable[[Any], Any]]) -> N:
    """The node with what stands in places of these kinds replaced; the node itself where nothing is another object.

    The node's class says what its fields hold; `changes` has by kind what stands for an element, of BODY for a
    statement inside.
    """
    made: dict[str, Any] = {}
    for name, kinds, change in _changers(type(node)):
        if kinds.isdisjoint(changes):
            continue
        old = getattr(node, name)
        new = change(old, changes)
        if new is not old:
            made[name] = new
    return replace(node, **made) if made else node  # type: ignore[type-var]


def with_names(
    node: N,
    names: Mapping[str, str],
    *kinds: Holds,
    also: Mapping[Holds, Callable[[Any], Any]] = types.MappingProxyType({}),
) -> N:
    """The node, and what is inside, with other names in the places of these kinds.

    The node's class says what its fields hold. A name that is not among `names` stays; `also` is as of `mapped`, for
    what holds names and is none.
    """

    def name(n: Any) -> Any:
        return names.get(n, n) if isinstance(n, str) else n

    changes: dict[Holds, Callable[[Any], Any]] = {**dict.fromkeys(kinds, name), **(also or {})}
    changes[Holds.BODY] = lambda inner: mapped(inner, changes)
    return mapped(node, changes)


def statements(body: Sequence[N]) -> list[N]:
    """All statements of a body, one that has a body before its own."""
    found: list[N] = []
    for s in body:
        found.append(s)
        for name in _bodies(type(s)):
            found += statements(getattr(s, name))
    return found


def rewrite(body: Sequence[N], change: Callable[[N], N | Sequence[N]]) -> tuple[N, ...]:
    """The body with every statement replaced by what stands for it: one, several or none.

    Statements inside come first: `change` sees a statement with its new body.
    """
    made: list[N] = []
    for s in body:
        held = _bodies(type(s))
        if held:
            s = _with(s, {name: rewrite(getattr(s, name), change) for name in held})
        new = change(s)
        if isinstance(new, Sequence):
            made += new
        else:
            made.append(new)
    return tuple(made)


def _with(node: N, new: Mapping[str, tuple[Any, ...]]) -> N:
    """The node with these fields; the node itself where their elements are the same objects."""
    changed = {name: v for name, v in new.items() if not _same(getattr(node, name), v)}
    return replace(node, **changed) if changed else node  # type: ignore[type-var]


def _same(old: Sequence[object], new: Sequence[object]) -> bool:
    return len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True))


# The grammar of a class, read from the types of its fields once.


def _once(function: Callable[P, R]) -> Callable[P, R]:
    """`functools.cache`, with the function's own type."""
    return cast("Callable[P, R]", cache(function))


@_once
def _bodies(kind: type) -> tuple[str, ...]:
    """The fields that are bodies: tuples of statements inside."""
    return tuple(name for name, kinds, _ in _changers(kind) if Holds.BODY in kinds)


@_once
def _collectors(kind: type, kinds: tuple[Holds, ...]) -> tuple[tuple[str, _Collect], ...]:
    made = ((name, _collector(hint, kinds)) for name, hint in _hints(kind))
    return tuple((name, collect) for name, collect in made if collect is not None)


@_once
def _changers(kind: type) -> tuple[tuple[str, frozenset[Holds], _Change], ...]:
    made = ((name, _kinds(hint), _changer(hint)) for name, hint in _hints(kind))
    return tuple((name, kinds, change) for name, kinds, change in made if change is not None)


def _hints(kind: type) -> list[tuple[str, Any]]:
    if not is_dataclass(kind):
        return []
    hints = get_type_hints(kind, include_extras=True)
    return [(f.name, hints[f.name]) for f in fields(kind) if f.init]


def _leaf(hint: Any) -> Holds | None:
    if get_origin(hint) is not Annotated:
        return None
    return next((x for x in get_args(hint)[1:] if isinstance(x, Holds)), None)


def _elements(hint: Any) -> tuple[Any, ...]:
    """The types of a tuple's elements, of an optional value, or of the alternatives of a value."""
    if get_origin(hint) in (tuple, Union, types.UnionType):
        return get_args(hint)
    return ()


def _kinds(hint: Any) -> frozenset[Holds]:
    kind = _leaf(hint)
    if kind is not None:
        return frozenset((kind,))
    inner = [_kinds(x) for x in _elements(hint)] or [_kinds(x) for _, x in _nested(hint)]
    return frozenset().union(*inner)


def _nested(hint: Any) -> list[tuple[str, Any]]:
    """The fields of a part that is no statement itself."""
    return _hints(hint) if isinstance(hint, type) else []


def _collector(hint: Any, kinds: tuple[Holds, ...]) -> _Collect | None:
    """What adds the elements of these kinds to a list; None where the type holds none of them."""
    if _kinds(hint).isdisjoint(kinds):
        return None
    if _leaf(hint) is not None:
        return lambda value, found: None if value is None else found.append(value)
    if get_origin(hint) is tuple:
        elements = get_args(hint)
        if elements[-1] is Ellipsis:
            if _leaf(elements[0]) is not None:
                return lambda value, found: found.extend([v for v in value if v is not None])
            one = _collector(elements[0], kinds)
            assert one is not None

            def each(value: Any, found: list[Any]) -> None:
                for v in value:
                    one(v, found)

            return each
        several = [(n, c) for n, c in enumerate(_collector(x, kinds) for x in elements) if c is not None]

        def places(value: Any, found: list[Any]) -> None:
            for n, collect in several:
                collect(value[n], found)

        return places
    if _elements(hint):
        (some,) = [c for c in (_collector(k, kinds) for k in _elements(hint)) if c is not None]
        return lambda value, found: None if value is None else some(value, found)
    inside = _collectors(hint, kinds)

    def part(value: Any, found: list[Any]) -> None:
        for name, collect in inside:
            collect(getattr(value, name), found)

    return part


def _changer(hint: Any) -> _Change | None:
    """What replaces the elements of the kinds that are asked for; None where the type holds none."""
    if not _kinds(hint):
        return None
    kind = _leaf(hint)
    if kind is not None:
        return lambda value, changes: value if value is None or kind not in changes else changes[kind](value)
    if get_origin(hint) is tuple:
        elements = get_args(hint)
        if elements[-1] is Ellipsis:
            one = _changer(elements[0])
            assert one is not None

            def each(value: Any, changes: Mapping[Holds, Callable[[Any], Any]]) -> Any:
                new = tuple([one(v, changes) for v in value])
                return value if _same(value, new) else new

            return each
        several = [_changer(x) for x in elements]

        def places(value: Any, changes: Mapping[Holds, Callable[[Any], Any]]) -> Any:
            new = tuple([v if c is None else c(v, changes) for c, v in zip(several, value, strict=True)])
            return value if _same(value, new) else new

        return places
    if _elements(hint):
        (some,) = [c for c in map(_changer, _elements(hint)) if c is not None]
        return lambda value, changes: None if value is None else some(value, changes)
    return mapped
