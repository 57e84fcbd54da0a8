"""torch's operator database: every sample is computed right or refused, and the documentation says which."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
import torch
from quick import slow_but

if TYPE_CHECKING:
    from torch_op_db import Sample

# How many parts the first samples are split into, each one export or a few. The others run with --run-slow.
PARTS, QUICK = 16, (0,)

# Samples of each operator and type in a part.
MOST = 2


def _quick(part: int) -> Sequence[Sample]:
    """The first samples of operators that the table says are supported, a part of them, in some of their types."""
    import torch_op_db as db

    rows = db.supported()
    chosen = []
    for place, op in enumerate(db.operators()):
        types = [t for t in db.DTYPES if rows.get(db.name_of(op), {}).get(db.type_name(t))]
        if place % PARTS != part or not types:
            continue
        # one type of each, in turn, so that all of them come up
        chosen += db.samples(op, types[place // PARTS % len(types)], MOST)
    return chosen


@pytest.mark.parametrize("part", slow_but(QUICK, range(PARTS)))
def test_samples_are_computed_right_or_refused(part: int) -> None:
    import torch_op_db as db

    found = db.outcomes(_quick(part))
    bad = [f"{o.op} {o.dtype} {o.index}: {o.status}: {o.detail}" for o in found if o.status in db.BAD]
    assert not bad, "\n".join(bad)
    rows = db.supported()
    refused = {(o.op, o.dtype) for o in found if o.status == db.REFUSED and not db.is_empty(o)}
    stale = sorted(f"{name} {dtype}" for name, dtype in refused if rows[name][dtype] == "all")
    assert not stale, f"the table says that all samples are read: {', '.join(stale)}; run {db.COMMAND}"


def test_operators_that_the_table_leaves_out_are_refused() -> None:
    import torch_op_db as db

    rows = db.supported()
    others = [op for op in db.operators() if not any(rows.get(db.name_of(op), {}).values())]
    given = [s for op in others[::30] for s in db.samples(op, torch.float32, 1)]
    found = db.outcomes(given)
    assert len(found) > 4
    assert {o.status for o in found} == {db.REFUSED}, [o for o in found if o.status != db.REFUSED]


def test_other_types_than_the_programs_are_refused() -> None:
    import torch_op_db as db

    op = next(o for o in db.operators() if o.name == "add")
    found = db.outcomes([s for t in (torch.complex64, torch.complex128) for s in db.samples(op, t, 2)])
    assert [o.status for o in found] == [db.REFUSED] * 4
    assert all(re.search("complex64|complex128", o.detail) for o in found)


@pytest.mark.slow
def test_every_sample_is_computed_right_or_refused() -> None:
    import torch_op_db as db

    found = [o for op in db.operators() for o in db.every(op)]
    bad = [f"{o.op} {o.dtype} {o.index}: {o.status}: {o.detail}" for o in found if o.status in db.BAD]
    assert not bad, "\n".join(bad)
    assert db.read_rows(db.page(found)) == db.supported(), f"run {db.COMMAND}"
