"""torch's own operator database, sample by sample: what a traced program computes against what torch does.

Many samples are traced together, as one function with many outputs, since an export costs far more than a node. A node
that is refused spoils the outputs of its own sample alone, as it would were that traced alone.

    python tests/torch_op_db.py [--write] [--jobs N] [OPERATOR ...]

runs every sample, or those of some operators, and writes the table of what is supported into the documentation; of
other operators it stays as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tolerant_reader import Tolerant, flat
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from prism.errors import IllegalIRError, PrismError, UnsupportedError
from prism.frontend.torch import reader
from prism.program.evaluate import evaluate
from prism.program.nodes import DType, Program
from prism.program.spec import check

# Each list of samples looks for a test of torch's own up the stack, and reads the source of every frame on its way.
for _module in (common_utils, core):
    vars(_module)["extract_test_fn"] = lambda: None

EQUAL, REFUSED, WRONG, BROKEN = "equal", "refused", "wrong", "broken"

BAD = frozenset({WRONG, BROKEN})
"""What no sample may be: another result than torch's, or an error that is not a refusal."""

PAGE = Path(__file__).parent.parent / "docs" / "supported_torch.md"
COMMAND = "python tests/torch_op_db.py --write"

# int16 is read as int32 is, and would add a tenth of the samples.
DTYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, d.value) for d in DType if d is not DType.INT16)
"""The types that programs have. Samples of other types are refused for their type alone."""

# Samples of one export.
_TOGETHER = 120

# Of float16 and bfloat16, what is left of a result computed in them.
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one sample.

    Attributes:
        op: the operator's name.
        dtype: the type that the sample was made for.
        index: the sample's place among those of the type.
        status: EQUAL, REFUSED, or one of BAD.
        detail: the reason, or what differs.
    """

    op: str
    dtype: str
    index: int
    status: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One call: its tensors apart from everything else."""

    op: str
    dtype: torch.dtype
    index: int
    tensors: tuple[torch.Tensor, ...]
    call: Callable[[Sequence[torch.Tensor]], Any]


def name_of(op: OpInfo) -> str:
    """The operator's name with its variant."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def operators() -> list[OpInfo]:
    """The whole database, in its order."""
    return list(op_db)


def samples(op: OpInfo, dtype: torch.dtype, most: int | None = None) -> list[Sample]:
    """The operator's samples of a type, the first `most` of them; the same on every run."""
    made: list[Sample] = []
    if dtype not in op.supported_dtypes("cpu"):  # type: ignore[no-untyped-call]
        return made
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index, given in enumerate(op.sample_inputs("cpu", dtype)):  # type: ignore[no-untyped-call]
            if most is not None and index >= most:
                break
            arguments = (given.input, given.args, given.kwargs)
            leaves, spec = pytree.tree_flatten(arguments)
            places = [p for p, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
            tensors = tuple(leaves[p].detach() for p in places)
            made.append(Sample(name_of(op), dtype, index, tensors, _caller(op, leaves, places, spec)))
    return made


def _caller(op: OpInfo, leaves: list[Any], places: list[int], spec: pytree.TreeSpec) -> Callable[..., Any]:
    def call(tensors: Sequence[torch.Tensor]) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(filled, spec)
        return op.op(first, *args, **kwargs)

    return call


def outcomes(given: Sequence[Sample]) -> list[Outcome]:
    """What becomes of each sample, traced as one function; halves are tried where torch cannot export the whole."""
    if not given:
        return []
    if len(given) > _TOGETHER:
        return [o for start in range(0, len(given), _TOGETHER) for o in outcomes(given[start : start + _TOGETHER])]
    try:
        found = _traced(given)
        if len(given) == 1:
            return found
        # Complex numbers are read where all of a function is, and others here may not be.
        return [
            outcomes([s])[0] if o.status == REFUSED and "complex" in o.detail else o
            for s, o in zip(given, found, strict=True)
        ]
    except UnsupportedError as error:
        if len(given) == 1:
            return [_outcome(given[0], REFUSED, _reason(error))]
    except Exception as error:
        if len(given) == 1:
            return [_outcome(given[0], BROKEN, f"{type(error).__name__}: {error}")]
    half = len(given) // 2
    return outcomes(given[:half]) + outcomes(given[half:])


def every(op: OpInfo) -> list[Outcome]:
    """What becomes of all samples of an operator."""
    return outcomes([s for dtype in DTYPES for s in samples(op, dtype)])


def type_name(dtype: torch.dtype) -> str:
    """The type as the table names it."""
    return str(dtype).removeprefix("torch.")


def _outcome(s: Sample, status: str, detail: str = "") -> Outcome:
    return Outcome(s.op, type_name(s.dtype), s.index, status, detail)


def _traced(given: Sequence[Sample]) -> list[Outcome]:
    # one that nothing reads: some samples have none, such as arange's
    tensors = [*(t for s in given for t in s.tensors), torch.zeros(1)]
    counts: list[int | str] = []

    def every(*traced: torch.Tensor) -> tuple[torch.Tensor, ...]:
        counts.clear()
        left, results = iter(traced), list[torch.Tensor]()
        for s in given:
            own = [next(left) for _ in s.tensors]
            try:
                made = flat(s.call(own))
            except Exception as error:
                counts.append(f"torch.export cannot capture it: {(str(error).splitlines() or [''])[0][:200]}")
                continue
            if all(isinstance(m, torch.Tensor) for m in made) and made:
                counts.append(len(made))
                results += made
            else:
                counts.append("output 0 is not a tensor")
        return tuple(results)

    for position, tensor in enumerate(tensors):
        reader._check_example(position, tensor)
    names = [f"t{n}" for n in range(len(tensors))]
    with _quiet():
        *_, exported = reader._export(every, reader._apart(tensors), None, "op")
        reader._refuse_mutation(exported, "op")
    translation = Tolerant(exported, "op", names, None, {})
    program = translation.program()
    arrays = {f"t{n}": _array(t) for n, t in enumerate(tensors) if t.dtype in DTYPES}
    found, place = list[Outcome](), 0
    values = _values(program, program.outputs, arrays)
    for s, count in zip(given, counts, strict=True):
        if isinstance(count, str):
            found.append(_outcome(s, REFUSED, count))
            continue
        places = range(place, place + count)
        place += count
        errors = [translation.errors[p] for p in places if p in translation.errors]
        broken = [e for e in errors if isinstance(e, IllegalIRError)]
        if errors:
            error = (broken or errors)[0]
            found.append(_outcome(s, BROKEN if broken else REFUSED, _reason(error)))
            continue
        outputs = [translation.names[p] for p in places]
        own = values if isinstance(values, dict) else _values(program, outputs, arrays)
        if isinstance(own, Exception):
            found.append(_outcome(s, BROKEN, f"evaluation: {type(own).__name__}: {own}"))
        else:
            found.append(_compared(s, program, [(name, own[name]) for name in outputs]))
    return found


def _values(whole: Program, outputs: Sequence[str], arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray] | Exception:
    program = Program(whole.name, whole.inputs, whole.definitions, tuple(outputs), whole.ranges, whole.weights)
    given = {*arrays, *whole.weights}
    missing = {t.name: np.zeros(tuple(map(int, t.shape))) for t in whole.inputs if t.name not in given}
    try:
        check(program)
        return evaluate(program, {**missing, **arrays})
    except Exception as error:
        return error


def _compared(s: Sample, program: Program, got: Sequence[tuple[str, np.ndarray]]) -> Outcome:
    """Whether the outputs of one sample are what torch computes, in its own type or in float64."""
    with _quiet(), _FirstOfEqual():  # type: ignore[no-untyped-call]
        own = flat(s.call([t.clone() for t in s.tensors]))
        exact = own
        with contextlib.suppress(Exception), _computing_in_float64():
            exact = flat(s.call([t.double() if t.is_floating_point() else t.clone() for t in s.tensors]))
    magnitudes = [float(np.abs(_array(t).astype(np.float64)).max(initial=0.0)) for t in s.tensors if t.dtype in DTYPES]
    largest = max((m for m in magnitudes if np.isfinite(m)), default=0.0)
    for (name, value), mine, theirs in zip(got, own, exact, strict=True):
        stored = program.tensor(name).dtype
        if str(mine.dtype).removeprefix("torch.") != stored.value:
            return _outcome(s, WRONG, f"type {stored.value}, not {mine.dtype}")
        if value.shape != tuple(mine.shape):
            return _outcome(s, WRONG, f"shape {value.shape}, not {tuple(mine.shape)}")
        wanted = _array(theirs).astype(np.float64)
        precise = _close(value, wanted, 1e-7 if stored.is_float else 0.0, largest)
        rough = min((_TOLERANCE[t.dtype] for t in (mine, *s.tensors) if t.dtype in _TOLERANCE), default=0.0)
        rough = max((_TOLERANCE[t.dtype] for t in (mine, *s.tensors) if t.dtype in _TOLERANCE), default=rough)
        if not precise and not _close(
            value, _array(mine).astype(np.float64), rough if stored.is_float else 0.0, largest
        ):
            return _outcome(s, WRONG, _difference(value, wanted))
    return _outcome(s, EQUAL)


class _FirstOfEqual(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Of equal elements the first comes first where torch does not say which, and the largest come in order."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Sorts are stable, and the largest elements the first of one."""
        given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | (kwargs or {})
        match func:
            case torch.ops.aten.sort.default:
                return torch.ops.aten.sort.stable(given.pop("self"), stable=True, **given)
            case torch.ops.aten.topk.default if given["self"].dim():
                x, dim, descending = given["self"], given.get("dim", -1), given.get("largest", True)
                made = torch.sort(x, stable=True, dim=dim, descending=descending)
                return tuple(found.narrow(dim, 0, given["k"]) for found in made)
        return func(*args, **(kwargs or {}))


def _reason(error: PrismError) -> str:
    """What and why, without the place: the same for every sample of an operator."""
    return f"{error.what}: {error.why}" if error.why else error.what


def _close(got: np.ndarray, want: np.ndarray, tolerance: float, largest: float) -> bool:
    """Whether two results differ by no more than rounding: the tolerance, or what numbers up to the largest leave."""
    if got.shape != want.shape:
        return False
    if tolerance == 0:
        return bool(np.array_equal(got, want, equal_nan=True))
    finite = want[np.isfinite(want)]
    scale = float(np.abs(finite).max()) if finite.size else 1.0
    return bool(
        np.allclose(got, want, rtol=tolerance, atol=tolerance * min(scale, 1.0) + 1e-13 * largest, equal_nan=True)
    )


def _difference(got: np.ndarray, want: np.ndarray) -> str:
    if got.shape != want.shape:
        return f"shape {got.shape}, not {want.shape}"
    differs = ~np.isclose(got, want, rtol=1e-9, atol=0, equal_nan=True)
    if not differs.any():
        return "a rounding"
    place = tuple(int(i) for i in np.argwhere(differs)[0])
    return f"{int(differs.sum())} of {got.size} differ, {got[place]!r} for {want[place]!r} at {place}"


def _array(tensor: torch.Tensor) -> np.ndarray:
    held = tensor.detach().resolve_conj().resolve_neg()
    return np.asarray((held.float() if held.dtype == torch.bfloat16 else held).numpy())


@contextlib.contextmanager
def _computing_in_float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        yield


# The table


def page(found: Sequence[Outcome]) -> str:
    """What is supported, as Markdown."""
    by_op: dict[str, list[Outcome]] = defaultdict(list)
    for o in found:
        by_op[o.op].append(o)
    read = {name: own for name, own in by_op.items() if any(o.status == EQUAL for o in own)}
    equal = sum(o.status == EQUAL for o in found)
    release = torch.__version__.partition("+")[0]
    empty = sum(map(is_empty, found))
    left_out = f" Samples with a dimension of extent 0 ({empty}) are refused for that, which is left out below."
    left_out = left_out if empty else ""
    lines = [
        "# torch operators",
        "",
        f"Made by `{COMMAND}`; tests check that it is what the code does.",
        "",
        f"The samples of the operator database of torch {release}"
        " (`torch.testing._internal.common_methods_invocations.op_db`) are traced and evaluated in float64, in every"
        f" type that a program may have. Of {len(found)} samples of {len(by_op)} operators, {equal} give what torch"
        f" gives, {len(found) - equal} are refused with an error that says why, and none is read as something else."
        " Samples of int16, which is read as int32 is, are left out; those of uint16, uint32, uint64 and of complex"
        " types are refused for their type.",
        "",
        f"An operator is read where torch takes it apart into others that are, too.{left_out}",
        "",
        "| operator | types | samples read | refused |",
        "|---|---|---:|---|",
    ]
    for name in sorted(read):
        own = read[name]
        count = f"{sum(o.status == EQUAL for o in own)} of {len(own)}"
        lines.append(f"| {name} | {_types(own)} | {count} | {_refusals(own)} |")
    reasons: dict[str, list[str]] = defaultdict(list)
    for name in sorted(by_op):
        if name not in read:
            reasons[_main_reason(by_op[name])].append(name)
    lines += ["", "## Operators that are refused", "", "| why | operators |", "|---|---|"]
    lines += [f"| {why} | {', '.join(names)} |" for why, names in sorted(reasons.items())]
    return "\n".join(lines) + "\n"


_TOTALS = re.compile(r"Of (\d+) samples of (\d+) operators, (\d+) give what torch gives, (\d+) are refused")


def updated(text: str, found: Sequence[Outcome]) -> str:
    """The page with what came of some operators in the place of what it says of them; the others stay."""
    ops = {o.op for o in found}
    before = 0
    refused: dict[str, list[str]] = defaultdict(list)
    rows: dict[str, str] = {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 4 and (counted := re.fullmatch(r"(\d+) of (\d+)", cells[2])):
            if cells[0] in ops:
                before += int(counted[1])
            else:
                rows[cells[0]] = line
        elif len(cells) == 2 and cells[0] not in ("why", "---"):
            refused[cells[0]] += [name for name in cells[1].split(", ") if name not in ops]
    own = page(found).splitlines()
    heads = [n for n, line in enumerate(own) if line.startswith("|---")]
    for line in own[heads[0] + 1 :]:
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 4:
            rows[cells[0]] = line
        elif len(cells) == 2 and cells[0] not in ("why", "---"):
            refused[cells[0]] += cells[1].split(", ")
    head, tail = (
        text.split("|---|---|---:|---|\n")[0],
        "\n## Operators that are refused\n\n| why | operators |\n|---|---|\n",
    )
    equal = sum(o.status == EQUAL for o in found) - before

    def counted_again(m: re.Match[str]) -> str:
        every, many, right, wrong = map(int, m.groups())
        said = f"Of {every} samples of {many} operators, {right + equal} give what torch gives"
        return f"{said}, {wrong - equal} are refused"

    head = _TOTALS.sub(counted_again, head) + "|---|---|---:|---|\n"
    whys = [f"| {why} | {', '.join(sorted(names))} |" for why, names in sorted(refused.items()) if names]
    return head + "".join(f"{rows[name]}\n" for name in sorted(rows)) + tail + "\n".join(whys) + "\n"


def supported() -> Mapping[str, Mapping[str, str]]:
    """The table as it stands."""
    return read_rows(PAGE.read_text())


def read_rows(text: str) -> Mapping[str, Mapping[str, str]]:
    """Of a table, for each operator that is read, whether `all` or `some` samples of a type are."""
    rows: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 4 and re.search(r"^\d+ of \d+$", cells[2]):
            whole, _, some = cells[1].partition("some of ")
            rows[cells[0]] = dict.fromkeys(re.findall(r"\w+", whole), "all") | dict.fromkeys(
                re.findall(r"\w+", some), "some"
            )
    return rows


def is_empty(o: Outcome) -> bool:
    """Whether a sample is refused because a dimension has no elements, which the table does not hold against a type."""
    return o.status == REFUSED and ("has no elements" in o.detail or "has extent 0" in o.detail)


def _types(own: Sequence[Outcome]) -> str:
    statuses: dict[str, set[str]] = defaultdict(set)
    for o in own:
        if not is_empty(o):
            statuses[o.dtype].add(o.status)
    names = [type_name(t) for t in DTYPES]
    whole = [t for t in names if statuses[t] == {EQUAL}]
    some = [t for t in names if EQUAL in statuses[t] and len(statuses[t]) > 1]
    return "; ".join(filter(None, [", ".join(whole), "some of " + ", ".join(some) if some else ""]))


def _short(detail: str) -> str:
    """A reason without what differs from sample to sample."""
    text = re.sub(r"\[[^]]*\]", "[…]", detail.replace("|", "/"))
    text = re.sub(r"\bt\d+\b", "an input", text)
    text = re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "…", text) if "int" not in text and "float" not in text else text
    return text if len(text) < 150 else text[:147] + "…"


def _refusals(own: Sequence[Outcome]) -> str:
    reasons = Counter(_short(o.detail) for o in own if o.status == REFUSED and not is_empty(o))
    return "; ".join(f"{why} ({n})" for why, n in sorted(reasons.items(), key=lambda r: (-r[1], r[0]))[:4])


def _main_reason(own: Sequence[Outcome]) -> str:
    """Why an operator is refused altogether: the reason of most samples."""
    reasons = Counter(_short(o.detail) for o in own if not is_empty(o))
    return min(reasons, key=lambda why: (-reasons[why], why)) if reasons else "its samples have no elements"


def _every(name: str) -> list[Outcome]:
    return [o for op in operators() if name_of(op) == name for o in every(op)]


def main() -> None:
    """The script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("operators", nargs="*", help="operators of the database; all by default")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--write", action="store_true", help="write the table into the documentation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = options.operators or sorted({name_of(op) for op in operators()})
    found: list[Outcome] = []
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=20) as pool:
        for own in pool.imap(_every, names):
            found += own
            for o in own:
                if o.status in BAD:
                    print(f"{o.status:8} {o.op} {o.dtype} {o.index}: {o.detail}", flush=True)
    print(dict(Counter(o.status for o in found)))
    if options.write:
        PAGE.write_text(updated(PAGE.read_text(), found) if options.operators else page(found))


if __name__ == "__main__":
    main()
