"""The lock and the cache: what was chosen can be chosen again, and what has changed is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from short_calls import config_of

from prism.events import Evidence, LockRecord
from prism.instantiate.cache import Cache, digest
from prism.instantiate.lock import program_hash, versions
from prism.program import build
from prism.program.index import Axis
from prism.program.nodes import Definition, DType, Program, SymbolRange, Tensor
from prism.program.region import canonical
from prism.report.records import from_json, to_json
from prism.sgraph.config import CORE, Config

AXIS = Axis("i", 8)
PROGRAM = Program(
    "twice",
    (Tensor("x", (8,), DType.FLOAT32),),
    (Definition("y", (AXIS,), build.mul(build.const(2), build.read("x", AXIS)), DType.FLOAT32),),
    ("y",),
)
CONFIG = Config({"T_m": 64, "S_k": 4}, {"k0": 4, "k1": 8}, {"k0": 3, "k1": 1})


def record() -> LockRecord:
    return LockRecord(
        program=program_hash(PROGRAM),
        sgraph="abc",
        config=CONFIG.flat(),
        target="sm_90",
        device="NVIDIA H200",
        evidence=Evidence.ESTIMATED,
        shapes={"seq": 64},
        seed=7,
        trials=12,
        budget={"iterations": 8},
        versions=versions(),
    )


def test_a_record_survives_the_disk_and_gives_the_choice_back() -> None:
    lock = record()
    data = to_json(lock)
    again = from_json(data, LockRecord)
    assert again == lock
    assert to_json(record()) == data
    assert config_of(again.config) == CONFIG


def test_programs_are_told_apart() -> None:
    other = replace(PROGRAM, ranges={"seq": SymbolRange(1, 2, 1)})
    assert program_hash(other) != program_hash(PROGRAM)


@pytest.mark.parametrize(("one", "other"), [(0.1, 0.1 + 2.0**-56), (1000001.0, 1000002.0), (1e300, 1.0000001e300)])
def test_a_constants_last_digits_are_part_of_what_a_program_is(one: float, other: float) -> None:
    """Searches are stored by the hash, and regions of one key share theirs."""
    (y,) = PROGRAM.definitions
    first, second = (
        replace(PROGRAM, definitions=(replace(y, expr=build.mul(build.const(c), build.read("x", AXIS))),))
        for c in (one, other)
    )
    assert program_hash(first) != program_hash(second)
    assert canonical(first).key != canonical(second).key
    half = replace(PROGRAM, definitions=(replace(PROGRAM.definitions[0], dtype=DType.FLOAT16),))
    assert program_hash(half) != program_hash(PROGRAM)


names = st.text(st.characters(categories=("Ll", "Nd"), include_characters="_"), min_size=1, max_size=8)
values = st.dictionaries(names, st.integers(1, 4096), max_size=4)
chosen = st.dictionaries(names.filter(lambda n: n not in CORE), st.frozensets(names) | values, max_size=4)


@given(values, values, values, values, chosen)
def test_configurations_are_what_was_written_of_them(
    symbols: dict[str, int], warps: dict[str, int], stages: dict[str, int], streams: dict[str, int], options: Any
) -> None:
    config = Config(symbols, warps, stages, options)
    assert Config.decode(json.loads(json.dumps(config.encode()))) == config
    assert Config.decode(config.encode()).key() == config.key()
    known = Config(symbols, warps, stages).having(streams=streams, library=warps.keys(), persistent=stages)
    assert config_of(json.loads(json.dumps(known.flat()))) == known


@pytest.mark.parametrize("name", sorted(CORE))
def test_no_option_is_called_as_what_every_configuration_has(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Config({}, {}, {}, {name: frozenset({"k"})})


def test_what_was_written_before_options_were_one_mapping_is_read() -> None:
    old = {"T_m": 64, "warps.k": 4, "stages.k": 2, "library.p": 1, "folded.c": 1, "descriptors.k": 1, "streams.k": 1}
    config = config_of({**old, "persistent.k": 3})
    assert config.flat() == {**old, "persistent.k": 3}
    assert config == Config(
        {"T_m": 64},
        {"k": 4},
        {"k": 2},
        {
            "library": frozenset({"p"}),
            "folded": frozenset({"c"}),
            "descriptors": frozenset({"k"}),
            "streams": {"k": 1},
            "persistent": {"k": 3},
        },
    )
    # Caches and journals go by this text.
    assert config.key() == "T_m=64 warps.k=4 stages.k=2 library.p folded.c descriptors.k streams.k=1 persistent.k=3"


def test_parts_of_a_program_are_one_configuration() -> None:
    one = Config({"T": 4}, {"k": 4}, {"k": 2}).having(library=["p"], persistent={"k": 3})
    names = (("T_0", "a", "b"), ("T_1", "c", "d"))
    both = Config.together(one.renamed({"T": t}, {"k": k, "p": p}) for t, k, p in names)
    assert both == Config({"T_0": 4, "T_1": 4}, {"a": 4, "c": 4}, {"a": 2, "c": 2}).having(
        library=["b", "d"], persistent={"a": 3, "c": 3}
    )
    assert both.having(library=()).options.keys() == {"persistent"}


def test_the_cache_keeps_entries_and_forgets_damaged_ones(tmp_path: Path) -> None:
    cache = Cache("things", tmp_path)
    key = digest("a", {"y": 1, "x": 2})
    assert key == digest("a", {"x": 2, "y": 1})
    assert key != digest("a", {"x": 2, "y": 2})
    assert cache.get(key) is None
    cache.put(key, {"n": 1})
    assert Cache("things", tmp_path).get(key) == {"n": 1}
    assert Cache("others", tmp_path).get(key) is None
    (file,) = tmp_path.rglob(f"{key}.json")
    file.write_text("{")
    assert cache.get(key) is None
    assert not list(tmp_path.rglob("*.part"))


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Cache("things", tmp_path / "file").put("k" * 64, {"n": 1})
