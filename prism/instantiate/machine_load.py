"""How busy other processes keep the machine while something is timed: from the kernel's own count of busy time.

A load average lags by a minute and counts what waits for a disk. `/proc/stat` counts what each core did; what this
process did of it is known, the rest is others', time that a hypervisor took away included.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prism.process.deadline import stat_fields

STAT = Path("/proc/stat")
CROWDED = 0.5
"""From how many cores on, beyond those that there are, a load is too much: what any system does by itself is less."""

SCHEDULED = Path("/proc/self/schedstat")
"""How long this process has run, and how long it could have and has not, ns."""
OWN = 1.5
"""By what a process is slowed that starts children, as a run does, where nothing else wants the processors."""
LOOK_S, GLANCE_S = 0.25, 0.1
"""How long a look at the load takes, seconds; and one that decides nothing, but is told beside what was stored."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a machine did while something was timed."""

    cores: int  # that this process may use
    threads: int  # the most that a contender runs on
    others: float | None  # how many cores other processes kept busy, on average; None where the system does not tell
    average: float | None  # the load average of the last minute; None where there is none

    @property
    def crowded(self) -> bool:
        """Whether others and the contender's threads together want more cores than there are."""
        if self.others is not None:
            return self.others + self.threads > self.cores + CROWDED
        return self.average is not None and self.average > self.cores + CROWDED


def quiet(load: Load | None) -> bool:
    """Whether it is known that nothing else wanted the cores."""
    return load is not None and not load.crowded


class Watch:
    """Watches from its making until it is asked.

    Args:
        cores: the processors to look at.
        stat: the text of /proc/stat, now; empty where there is none.
        clock: seconds from some fixed point.
        own: seconds of processor time that this process has taken.
    """

    def __init__(
        self,
        cores: frozenset[int] | None = None,
        stat: Callable[[], str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        own: Callable[[], float] = time.process_time,
    ) -> None:
        self._cores = cores if cores is not None else usable_cores()
        self._stat = stat or _stat
        self._clock = clock
        self._own = own
        self._start = self._now()

    def _now(self) -> tuple[float, float, float | None]:
        return self._clock(), self._own(), busy_seconds(self._stat(), self._cores)

    def load(self, threads: int) -> Load:
        """What was seen since the watch began, of contenders on so many threads at most."""
        (start, own, busy), (end, own_end, busy_end) = self._start, self._now()
        others = None
        if busy is not None and busy_end is not None and end > start:
            others = max(0.0, (busy_end - busy) - (own_end - own)) / (end - start)
        average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        return Load(len(self._cores), threads, others, average)


def load_now(threads: int, waits: int | None = None, look_s: float = LOOK_S) -> Load:
    """What the machine does at this moment, for a contender on so many threads.

    What the threads of a process that `waits` still do, as spin for a tenth of a second after a product, is no load;
    the look takes `look_s` seconds.
    """
    watch = Watch(own=lambda: time.process_time() + (0.0 if waits is None else process_seconds(waits)))
    time.sleep(look_s)
    return watch.load(threads)


def process_seconds(pid: int) -> float:
    """The processor time that a process has taken; 0 where the system does not tell."""
    try:
        user, system = stat_fields(pid)[11:13]
    except (OSError, ValueError):
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def others_now() -> float | None:
    """How many cores other processes keep busy at this moment, children none of them; None where it is not told."""
    watch = Watch(own=family_seconds)
    time.sleep(GLANCE_S)
    return watch.load(1).others


def family_seconds() -> float:
    """The processor time that this process and its children have taken, theirs included, whether they live or not.

    A run may have begun children that it does not need, which import what they would have.
    """
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total: float = time.process_time() + ended.ru_utime + ended.ru_stime
    children: dict[int, list[tuple[int, int]]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            fields = stat_fields(int(folder.name))
            children.setdefault(int(fields[1]), []).append((int(folder.name), sum(map(int, fields[11:15]))))
    family = [*children.get(os.getpid(), ())]
    for pid, _ in family:
        family += children.get(pid, ())
    ticks: int = os.sysconf("SC_CLK_TCK")
    taken: float = sum(t for _, t in family) / ticks
    return total + taken


def slowed() -> float:
    """How many times as long as on a machine that nothing else uses this process has taken, at least 1.

    It is 1 where the system does not tell.
    """
    try:
        ran, waited = map(int, SCHEDULED.read_text().split()[:2])
    except (OSError, ValueError):
        return 1.0
    return max(1.0, (ran + waited) / max(ran, 1) / OWN)


def usable_cores() -> frozenset[int]:
    """The processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def busy_seconds(stat: str, cores: frozenset[int]) -> float | None:
    """Seconds for which these processors have not been idle, since the system started; None where it is not told.

    `stat` is the text of /proc/stat.
    """
    ticks = 0
    seen = 0
    for line in stat.splitlines():
        name, *counts = line.split()
        if not (name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cores):
            continue
        # user nice system idle iowait irq softirq steal guest guest_nice; the last two are in the first two.
        numbers = [int(c) for c in counts[:8]]
        ticks += sum(numbers) - sum(numbers[3:5])
        seen += 1
    return ticks / os.sysconf("SC_CLK_TCK") if seen else None


def _stat() -> str:
    try:
        return STAT.read_text()
    except OSError:
        return ""
