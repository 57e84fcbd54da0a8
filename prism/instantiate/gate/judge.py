"""The numeric gate's arithmetic: is a result as near to the float64 oracle as eager's is, within a small factor?

    RMS error      <= 4 * max(eager's, unit roundoff)
    maximal error  <= 8 * max(eager's, 4 * unit roundoff)
    what is not finite in eager's result is not finite in ours, and inversely, unless eager alone overflowed

Where inputs are not finite themselves, two more things are right. The real numbers do not say whether a sum over
infinities is infinite or not a number, and rounding decides the sign of a small factor of one: which of them it is may
differ. And what a mask or a padding leaves out, as a factor of 0, need not be read: the result may be that in which 0
times anything is 0, where eager makes a NaN of 0 * inf. FlashAttention, too, leaves out the tiles that are masked. And
where a guard makes a number of NaN (`where(isnan(p), 0, p)`), the number that is right is one of two: with or without.

What eager makes is one sample of what rounding does. Where it is much smaller than others of the same program, because
a few sums decide the result and happen to come out right, it is no measure: where a result fails by eager's, the
largest error of several runs of the program in other orders takes its place (`prism.backends.eager`).

Errors are relative to the root mean square of the oracle's values, row by row (a row is the last dimension), because
rows of one tensor can differ by orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from prism.instantiate.gate.factors import MAX_FACTOR, ratios
from prism.program.nodes import DType

_LARGEST: Mapping[DType, float] = MappingProxyType(
    {DType.FLOAT64: 1.8e308, DType.FLOAT32: 3.4028235e38, DType.FLOAT16: 65504.0, DType.BFLOAT16: 3.3895314e38}
)
_SMALLEST: Mapping[DType, float] = MappingProxyType(
    {DType.FLOAT64: 2.0**-1074, DType.FLOAT32: 2.0**-149, DType.FLOAT16: 2.0**-24, DType.BFLOAT16: 2.0**-133}
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the gate says of one output."""

    ratio: float  # the larger of (RMS error, maximal error), each as a multiple of what is allowed; it passes up to 1
    reason: str = ""  # why it does not pass, in one line; empty when it does

    def __bool__(self) -> bool:
        return not self.reason


def judge(
    result: np.ndarray,
    oracle: np.ndarray,
    eager: np.ndarray,
    dtype: DType,
    written: np.ndarray | None = None,
    everything: bool = True,
    clean: Sequence[np.ndarray] = (),
    errors: bool = True,
    others: Sequence[np.ndarray] = (),
) -> Judgement:
    """Judge one output.

    Args:
        result: what the kernels computed, as float64.
        oracle: the float64 interpreter's result on the same rounded inputs.
        eager: what operator-by-operator torch computed, as float64.
        dtype: the output's data type.
        written: which elements the kernels wrote; all when None.
        everything: whether every element had to be written; else only those that were are judged.
        clean: where inputs are not finite: the oracle's results where what a factor of 0 leaves out is not read, of
            which the nearest counts.
        errors: whether errors are judged, or only what is finite.
        others: what may as well be computed as what eager computed: the largest error of all counts.
    """
    held = np.ones(result.shape, dtype=bool) if written is None else written
    if not dtype.is_float:
        # A byte has no value that no kernel writes.
        held = held | (result == oracle)
    if everything and not held.all():
        return Judgement(np.inf, f"{int((~held).sum())} of {held.size} elements were never written")
    if not held.any():
        return Judgement(np.inf, "no element was written") if held.size else Judgement(0.0)
    if not dtype.is_float:
        wrong = int((held & np.logical_and.reduce([result != x for x in (oracle, eager, *others)])).sum())
        return Judgement(np.inf, f"{wrong} elements differ") if wrong else Judgement(0.0)
    unread = np.zeros(held.shape, dtype=bool)
    odd = np.isfinite(result) & ~np.isfinite(oracle)
    for one in clean:
        with np.errstate(invalid="ignore"):
            nearer = odd & np.isfinite(one) & ~(np.abs(one - result) >= np.abs(oracle - result))
        unread |= nearer
        oracle = np.where(nearer, one, oracle)
    pattern = _pattern(result, oracle, eager, dtype, held, bool(clean), others)
    if pattern:
        return Judgement(np.inf, pattern)
    return _errors(result, oracle, eager, dtype, held, unread, others) if errors else Judgement(0.0)


def _class(values: np.ndarray) -> np.ndarray:
    """0 for finite, 1 for not a number, 2 and 3 for the infinities."""
    found = np.zeros(values.shape, np.int8)
    found[np.isnan(values)] = 1
    found[values == np.inf] = 2
    found[values == -np.inf] = 3
    return found


def _pattern(
    result: np.ndarray,
    oracle: np.ndarray,
    eager: np.ndarray,
    dtype: DType,
    held: np.ndarray,
    loose: bool,
    others: Sequence[np.ndarray],
) -> str:
    # Mostly all is finite, and of large outputs each pass over them counts.
    if (np.isfinite(result) & np.isfinite(eager) | ~held).all():
        return ""
    largest = _LARGEST[dtype]
    # Half a unit in the last place beyond the largest number rounds to infinity.
    rounded = np.where(np.abs(oracle) >= largest * (1 + dtype.roundoff), np.copysign(np.inf, oracle), oracle)
    got, exact, given = _class(result), _class(rounded), _class(eager)
    # A finite value where eager has none is right when the oracle is finite: only eager overflowed.
    wrong = held & (got != given) & (got != exact)
    for also in map(_class, others):
        # What is infinite in one order may be the difference of infinities in another.
        wrong &= (got != also) & ~((got > 0) & (also > 0))
    if loose:
        wrong &= ~((got > 0) & (given > 0))
    if not wrong.any():
        return ""
    # So near the largest number that an error which is allowed crosses it, finite and infinite are both right.
    scale = np.broadcast_to(_row_scale(oracle), oracle.shape)
    theirs = _relative(eager, oracle, scale, _SMALLEST[dtype])[held & np.isfinite(eager) & np.isfinite(oracle)]
    allowed = MAX_FACTOR * max(float(theirs.max()) if theirs.size else 0.0, 4 * dtype.roundoff) * scale
    borderline = (np.abs(np.abs(oracle) - largest) <= allowed) & (got != 1)
    wrong &= ~borderline
    if wrong.any():
        names = ("finite", "nan", "inf", "-inf")
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        found, expected = names[got[at]], names[given[at]]
        return f"{int(wrong.sum())} elements are {found} where eager's are {expected}, the first at {list(at)}"
    return ""


def _errors(
    result: np.ndarray,
    oracle: np.ndarray,
    eager: np.ndarray,
    dtype: DType,
    held: np.ndarray,
    unread: np.ndarray,
    others: Sequence[np.ndarray],
) -> Judgement:
    # Where eager overflowed its error is infinite: nothing is asked of ours, and the rest of eager's is no measure.
    finite = held & np.isfinite(result) & np.isfinite(oracle)
    usable, asked = finite & np.isfinite(eager), finite & (np.isfinite(eager) | unread)
    if not asked.any():
        return Judgement(0.0)
    roundoff = dtype.roundoff
    scale = _row_scale(oracle)
    floor = _SMALLEST[dtype]
    ours = _where(_relative(result, oracle, scale, floor), asked)
    their_rms = their_max = 0.0
    for x in (eager, *others):
        theirs = _where(_relative(x, oracle, scale, floor), usable & np.isfinite(x) if others else usable)
        if theirs.size:
            their_rms = max(their_rms, float(np.sqrt(np.mean(theirs**2))))
            their_max = max(their_max, float(theirs.max()))
    rms, largest = float(np.sqrt(np.mean(ours**2))), float(ours.max())
    rms_ratio, max_ratio = ratios(rms, largest, their_rms, their_max, roundoff)
    ratio = max(rms_ratio, max_ratio)
    if ratio <= 1:
        return Judgement(ratio)
    which, error, reference = ("RMS", rms, their_rms) if rms_ratio >= max_ratio else ("maximal", largest, their_max)
    return Judgement(ratio, f"{which} error {error:.2e}, eager's is {reference:.2e}: {ratio:.1f} times what is allowed")


def _where(values: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The values that the mask lets through; themselves where it lets all."""
    return values if mask.all() else values[mask]


def _row_scale(oracle: np.ndarray) -> np.ndarray:
    usable = np.isfinite(oracle)
    with np.errstate(over="ignore"):  # of what float64 alone holds
        squares = np.where(usable, oracle, 0.0) ** 2
    overall = float(np.sqrt(np.mean(squares))) if squares.size else 0.0
    if squares.ndim == 0:
        return np.asarray(overall or 1.0)
    count = np.maximum(usable.sum(axis=-1, keepdims=True), 1)
    rows = np.sqrt(np.sum(squares, axis=-1, keepdims=True) / count)
    # A row of zeros, or one that cancelled to nearly nothing, is measured by the whole tensor.
    return np.where(rows > 1e-6 * overall, rows, overall or 1.0)


def _relative(values: np.ndarray, oracle: np.ndarray, scale: np.ndarray, floor: float) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(values - oracle)
        return np.asarray(np.where(difference <= floor, 0.0, difference) / scale)
