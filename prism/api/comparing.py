"""What is said of how a choice compares with what was given: in errors, and in warnings of the machine's load."""

from __future__ import annotations

from prism.api.records import Choice
from prism.events import Recorder
from prism.instantiate.confirm import Confirmation
from prism.instantiate.machine_load import CROWDED, Load
from prism.report.units import duration


def no_better(ours: float, theirs: float, baseline: str, found: Confirmation, others_now: float | None = None) -> str:
    """What both take, in one clause, and how that was measured.

    Times are seconds; `others_now` are the cores that others keep busy now, where what was found is stored.
    """
    when = f"stored, of {found.date}" if found.stored else f"timed anew, {found.date}"
    gains = ", ".join(f"{g:.2f}x" for g in found.ratios)
    low, high = found.between
    noise = f": with what these vary by, {low:.2f}x to {high:.2f}x" if high > 1.0 else ""
    said = [f"measured {gains}{noise}", when]
    crowded = _most_crowded(found) or found.deciding.load
    if crowded is not None:
        said.append(_busy(crowded))
    if others_now is not None:
        said.append(f"now they keep {others_now:.1f} busy")
    return f"the best takes {duration(ours)}, {baseline} {duration(theirs)} ({'; '.join(said)})"


def why_no_better(choice: Choice) -> str:
    """What both take, in one clause, and how that is known."""
    ours, theirs, found = choice.best.seconds, choice.baseline_seconds, choice.confirmation
    if found is None:
        took = f"the best takes {duration(ours)}, {choice.baseline} {duration(theirs)}"
        return f"{took} ({choice.tuned.evidence.value})"
    return no_better(ours, theirs, choice.baseline, found, choice.others_now)


def of_another_machine(choice: Choice) -> bool:
    """Whether timing again may say something else: what was measured is of another day, or of a machine in use."""
    found = choice.confirmation
    return found is not None and (found.stored or _most_crowded(found) is not None)


def _most_crowded(found: Confirmation) -> Load | None:
    """The load at the match where others and the contenders wanted most; None where there were cores enough."""
    return max((x for x in found.loads if x.crowded), key=lambda x: (x.threads, x.others or 0.0), default=None)


def _busy(load: Load) -> str:
    """What others did, in one clause."""
    cores = f"{load.cores} core{'s' * (load.cores != 1)}"
    if load.others is None:
        return f"the load average was {load.average:.1f} on {cores}"
    return f"other processes kept {load.others:.1f} of {cores} busy"


def warn_of_load(choice: Choice, recorder: Recorder) -> None:
    """Say so where others wanted the cores that kernels were timed on, or want more or fewer of them now."""
    found = choice.confirmation
    if found is None:
        return
    crowded, then, now = _most_crowded(found), found.deciding.load, choice.others_now
    if then is not None and then.others is not None and now is not None and abs(now - then.others) >= CROWDED:
        recorder.warn(
            f"the times are stored, of {found.date}, when {_busy(then)}; now they keep {now:.1f}: timed now, they and "
            "the gain may be others (--anew times again)"
        )
    elif crowded is not None:
        recorder.warn(
            f"{_busy(crowded)} while contenders were timed on up to {crowded.threads} "
            f"thread{'s' * (crowded.threads != 1)}: more than there are cores for; on an idle machine times are "
            "others, and the gain may be (--anew times again)"
        )
