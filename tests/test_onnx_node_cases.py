"""Every node case of `onnx`: read as what it says, or refused; and the table of them in the documentation."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx_node_cases import CRASHED, EQUAL, PAGE, WRONG, collect, outcome, page
from quick import slow_but

from prism.frontend.onnx.islands import cut
from prism.frontend.onnx.other_readers import Inference
from prism.frontend.onnx.reader import TRANSLATORS
from prism.frontend.onnx.schemas import MEANINGLESS, VERSIONS

RELEASE = tuple(int(part) for part in onnx.__version__.split(".")[:2])


@pytest.mark.skipif(RELEASE < (1, 23), reason="cases of Attention were corrected in onnx 1.23")
@pytest.mark.parametrize("check", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["read", "read and checked"])
def test_node_cases_are_read_right_or_refused(check: bool) -> None:
    # One test, because making the cases takes longer than reading them.
    outcomes = [outcome(case, check) for case in collect()]
    bad = [f"{o.case.name}: {o.kind}: {o.why}" for o in outcomes if o.kind in (WRONG, CRASHED)]
    assert not bad, "\n".join(bad)
    assert sum(o.kind == EQUAL for o in outcomes) > len(outcomes) / 2
    if RELEASE == (1, 23):
        assert PAGE.read_text() == page(outcomes), "run python tests/onnx_node_cases.py --write"


@pytest.mark.parametrize("of", slow_but([29], [29, 1]))
def test_no_case_is_refused_as_a_model(of: int, tmp_path: Path) -> None:
    """What has no translation stays as it is, be it all of the model."""
    path = tmp_path / "case.onnx"
    with Inference() as asked:
        for case in collect()[::of]:
            path.write_bytes(case.model.SerializeToString())
            parts = cut(path, inference=asked)
            chosen = {i.name for i in parts.islands}
            many = sum(p.nodes for p in parts.parts(chosen))
            assert many >= parts.count, case.name
            onnx.checker.check_model(onnx.load_from_string(parts.with_functions(chosen)))


def test_every_operator_has_versions() -> None:
    assert set(TRANSLATORS) <= set(VERSIONS)
    for op, (first, last) in VERSIONS.items():
        known = {s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == ""}
        assert first in known, op
        assert last in known or last > max(known), op


def test_what_is_ignored_are_attributes() -> None:
    for op, names in MEANINGLESS.items():
        schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == ""]
        assert names <= {a for s in schemas for a in s.attributes}, op
