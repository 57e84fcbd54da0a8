"""What nodes say of their fields: walks, renamings and rewrites that follow, on a small grammar and on our own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeAlias, get_args

import pytest
from sgraph_samples import SAMPLES, TILED_SCANS

from prism.backends import tile
from prism.backends.lower import lower
from prism.backends.tile_rewrite import renamed
from prism.ir import kit
from prism.ir.kit import Changed, Defined, Holds, Used
from prism.program.index import Axis, Index
from prism.program.nodes import DType, ReduceKind
from prism.sgraph import nodes


@dataclass(frozen=True, slots=True)
class Sum:
    terms: tuple[tuple[Used, Annotated[int, Holds.INTEGER]], ...]
    offset: Annotated[int, Holds.INTEGER] = 0


@dataclass(frozen=True, slots=True)
class Make:
    dst: Defined
    of: Sum
    args: tuple[Annotated[str | float, Holds.USES], ...] = ()
    mask: Used | None = None
    label: str = "untouched"


@dataclass(frozen=True, slots=True)
class Add:
    acc: Changed
    src: Used


@dataclass(frozen=True, slots=True)
class Block:
    index: Annotated[str, Holds.BINDS]
    body: tuple[Annotated[Statement, Holds.BODY], ...]


Statement: TypeAlias = Make | Add | Block

MAKE = Make("x", Sum((("i", 3), ("j", 4)), 5), ("a", 2.0, "b"), "m")
BODY: tuple[Statement, ...] = (MAKE, Block("k", (Add("t", "x"), Block("l", (Add("t", "y"),)))))


def test_what_a_node_holds_is_found_in_the_order_of_its_fields() -> None:
    assert kit.names(MAKE, Holds.USES) == ("i", "j", "a", "b", "m")
    assert kit.parts(MAKE, Holds.USES) == ["i", "j", "a", 2.0, "b", "m"]
    assert kit.parts(MAKE, Holds.INTEGER) == [3, 4, 5]
    assert kit.names(MAKE, Holds.DEFINES, Holds.CHANGES) == ("x",)
    assert kit.names(Add("t", "x"), Holds.DEFINES, Holds.CHANGES) == ("t",)
    assert kit.names(dataclasses.replace(MAKE, mask=None), Holds.USES) == ("i", "j", "a", "b")


def test_a_walk_reaches_what_stands_inside_a_block_before_what_follows() -> None:
    assert [type(s).__name__ for s in kit.statements(BODY)] == ["Make", "Block", "Add", "Block", "Add"]


def test_what_is_asked_for_is_replaced_and_nothing_else() -> None:
    made = kit.mapped(MAKE, {Holds.USES: lambda a: a.upper() if isinstance(a, str) else a})
    assert made == Make("x", Sum((("I", 3), ("J", 4)), 5), ("A", 2.0, "B"), "M")
    assert kit.mapped(MAKE, {Holds.INTEGER: lambda n: n + 1}).of == Sum((("i", 4), ("j", 5)), 6)
    assert kit.mapped(MAKE, {Holds.TENSOR: str.upper}) is MAKE
    assert kit.mapped(MAKE, {Holds.USES: lambda a: a}) is MAKE


def test_a_rewrite_sees_the_inside_first_and_may_drop_or_add() -> None:
    seen: list[str] = []

    def change(s: Statement) -> Statement | list[Statement]:
        seen.append(type(s).__name__)
        match s:
            case Add(src="y"):
                return []
            case Add():
                return [s, s]
            case Block(body=()):
                return []
            case _:
                return s

    assert kit.rewrite(BODY, change) == (MAKE, Block("k", (Add("t", "x"), Add("t", "x"))))
    assert seen == ["Make", "Add", "Add", "Block", "Block"]
    assert kit.rewrite(BODY, lambda s: s)[1] is BODY[1]


NAMES = (Holds.DEFINES, Holds.CHANGES, Holds.USES, Holds.BINDS, Holds.SCALAR)


# Our own representations: a field that names something and does not say so would be left out of every walk.
_PLAIN = {"op", "dim", "dims", "tile", "readers", "groups"}


@pytest.mark.parametrize(
    "kind", [*get_args(nodes.Stmt), *get_args(tile.Stmt)], ids=lambda k: f"{k.__module__.split('.')[1]}.{k.__name__}"
)
def test_every_field_that_may_name_something_says_what(kind: type) -> None:
    hints = dict(kit._hints(kind))
    for name, hint in hints.items():
        if name not in _PLAIN and any(x in str(hint) for x in ("str", "Index", "Axis", "Expr")):
            assert kit._kinds(hint), f"{kind.__name__}.{name}"


@pytest.mark.parametrize("sample", [*SAMPLES, *TILED_SCANS], ids=lambda s: s.__name__)
def test_renaming_every_name_and_back_is_the_program(sample: Callable[[DType], object]) -> None:
    sgraph = sample(DType.FLOAT32).sgraph  # type: ignore[attr-defined]
    for program in lower(sgraph).programs:
        body = tuple(program.body)
        names = {n for s in kit.statements(body) for n in kit.names(s, *tuple(Holds))} - {
            t.name for t in program.tensors
        }
        there = {n: f"{n}_there" for n in names}
        away = tuple(renamed(s, there) for s in body)
        assert not names & {
            n for s in kit.statements(away) for n in kit.names(s, Holds.DEFINES, Holds.USES, Holds.BINDS)
        }
        assert tuple(renamed(s, {b: a for a, b in there.items()}) for s in away) == body


def test_an_sgraph_statement_takes_another_axis_everywhere() -> None:
    k, q = Axis("old", 8), Axis("q", 8)
    at = (Index.axis(k),)
    loop = nodes.Loop(k, (nodes.Load("x", "a", at), nodes.TileReduce("s", ReduceKind.SUM, k, "x")), at)

    def renewed(s: nodes.Stmt) -> nodes.Stmt:
        return kit.mapped(
            s,
            {
                Holds.AXIS: lambda a: q if a == k else a,
                Holds.INDEX: lambda i: i.substitute({k: Index.axis(q)}),
                Holds.BODY: renewed,
            },
        )

    assert "old" not in str(renewed(loop))
    assert renewed(renewed(loop)) == renewed(loop)
