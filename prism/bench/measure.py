"""Measuring a prepared folder on the device: the standard library here, torch and triton in child processes.

    describe  device, versions, and the rates that the card reaches now
    compile   prism's configurations and torch.compile's kernels ahead, in many processes; a run of which too few
              compile is stopped there
    trials    case by case, in one child: every configuration a little, or what an earlier run has told of them
    confirm   the best few against the baselines, interleaved, outputs checked; above 3x once more, for longer
    write     the results after each case, so that an interrupted run keeps them and the next one goes on

A child that crashes or falls silent is killed; what it was at is noted as failed, and a new child goes on without it.
Results of earlier runs are carried in: what has them is not measured again, and what failed is tried once more.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prism.bench.results import COMPILED, COMPILERS, INTERPRETED, measured_row, summary
from prism.errors import BackendError, UsageError
from prism.instantiate.rounds import INCREDIBLE, LONGER
from prism.process.child import child_environment, module_command, run_tool
from prism.process.worker import EventWorker

SCHEMA = "prism.bench.results/1"
CHILD = "prism.bench.child"
LEAST_COMPILED = 0.9
"""The part of the configurations that has to compile: with fewer something is wrong that no measurement tells."""
FEW = 20
"""Of so few configurations one has to compile."""
FIRST_PART = 0.6
"""The part of a case's time after which whoever is still preparing is given up, so that the others get theirs."""
PLAIN = frozenset({"symbols", "warps", "stages"})
"""What every configuration has; all else are options."""
SMOKED = 5
"""Cases that are tried before all others."""
TRIES = 2
"""How often a case is tried."""
CLOCKS = "clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw,driver_version"


@dataclass(frozen=True, slots=True)
class Plan:
    """How a run spends its time."""

    device: str = "cuda"  # `cuda`, or `interpreter` to run the same path without a GPU
    budget_s: float = 560.0  # seconds in all; no case is begun after it
    case_s: float = 120.0  # seconds of one case, all of it
    trials_s: float = 6.0  # seconds of a case's trials
    confirm_s: float = 3.0  # seconds of its timed rounds
    silence_s: float = 90.0  # how long a child may be at one contender before it is killed
    rounds: int = 30  # rounds at most
    finalists: int = 3  # of prism's configurations that meet the baselines
    baselines: bool = True  # whether they are timed (without, only configurations are: for the cost model)
    only: tuple[str, ...] = ()  # baselines that are timed; all that a case names, eager and torch.compile when empty
    compile_ahead_s: float = 240.0  # seconds of compiling ahead at most; 0 leaves it out
    compilers: int = 14  # processes that compile ahead
    baseline_compilers: int = 4  # of these at a time with torch.compile, which times on the device itself
    cache: Path = field(default_factory=lambda: Path("out") / "bench-cache")  # where compiled kernels are kept


@dataclass(slots=True)
class Tally:
    """What has compiled of what was to be; several threads write it."""

    total: int  # configurations that are to be compiled
    compiled: int = 0  # those that have been
    failed: Counter[str] = field(default_factory=Counter)  # how many did not compile, by the reason
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, why: str = "") -> None:
        """One more; `why` it did not compile."""
        with self._lock:
            if why:
                self.failed[why] += 1
            else:
                self.compiled += 1

    @property
    def wrong(self) -> int:
        """How many did not compile."""
        with self._lock:
            return sum(self.failed.values())

    @property
    def hopeless(self) -> bool:
        """Whether too few will have compiled in the end, whatever happens to the rest."""
        most = self.total if self.total < FEW else int((1 - LEAST_COMPILED) * self.total) + 1
        return 0 < most <= self.wrong

    @property
    def enough(self) -> bool:
        """Whether enough of those that were tried have compiled."""
        tried = self.compiled + self.wrong
        return not self.wrong or self.compiled >= (LEAST_COMPILED * tried if tried >= FEW else 1)

    def as_dict(self) -> dict[str, Any]:
        """For the results."""
        return {"configurations": self.total, "compiled": self.compiled, "failed": dict(self.failed.most_common())}

    def __str__(self) -> str:
        text = f"{self.compiled} of {self.total} configurations"
        if self.failed:
            ((why, many),) = self.failed.most_common(1)
            text += f", {self.wrong} failed ({many} times: {why})"
        return text


def settled(row: Mapping[str, Any], wanted: Iterable[str]) -> bool:
    """Whether a case need not be tried again: a kernel has a time, and so has what of torch was wanted."""
    return row["prism_us"] is not None and all(name in row["baselines"] for name in wanted)


def better(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of two rows of a case the one that tells more, the new one if they tell as much."""

    def told(row: Mapping[str, Any]) -> tuple[bool, int, int]:
        baselines = row["baselines"]
        return row["prism_us"] is not None, sum(b in baselines for b in COMPILERS), len(baselines)

    return new if told(new) >= told(old) else old


def together(bodies: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The results of several runs as one: of each case the row that tells most.

    Raises:
        UsageError: they are of several devices.
    """
    found: dict[str, Any] = {"schema": SCHEMA, "cases": []}
    rows: dict[str, Mapping[str, Any]] = {}
    for body in bodies:
        _same_device(found, body)
        found |= {k: v for k, v in body.items() if k not in ("cases", "runs", "summary")}
        found["runs"] = [*found.get("runs", []), *(r for r in body.get("runs", []) if r not in found.get("runs", []))]
        for row in body["cases"]:
            rows[row["name"]] = better(rows[row["name"]], row) if row["name"] in rows else row
    return {**found, "cases": list(rows.values())}


def _same_device(body: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    names = [b["device"]["name"] for b in (body, other) if b.get("device")]
    if len(set(names)) > 1:
        raise UsageError(
            "the results are of another device",
            why=f"they are of {names[0]}, and this is {names[1]}",
            fix="give another results file, and leave --earlier out",
        )


def read_results(path: Path) -> dict[str, Any]:
    """A results file. Raises UsageError: it cannot be read."""
    try:
        body: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if body["schema"] != SCHEMA:
            raise ValueError(f"its schema is {body['schema']}")
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            "the results cannot be read", where=str(path), why=str(error), fix="name another file, or move it away"
        ) from None
    return body


def named(case: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether one of the names is the case's group or a part of its own name; any case is where there are none."""
    return not names or any(n == case["group"] or n in case["name"] for n in names)


def smoked(
    cases: Sequence[Mapping[str, Any]], names: Sequence[str] = (), most: int = SMOKED
) -> list[tuple[Mapping[str, Any], list[list[int]]]]:
    """Cases with configurations to begin with: the best with each option or two of them together, small cases first."""
    wanted = [c for c in cases if "best" in c and named(c, names)]
    found: dict[str, tuple[Mapping[str, Any], list[list[int]]]] = {}
    seen: set[str] = set()

    def take(case: Mapping[str, Any], place: list[int]) -> None:
        _, places = found.setdefault(case["name"], (case, []))
        if place not in places:
            places.append(place)
        seen.update(set(case["candidates"][place[0]]["configs"][place[1]]["config"]) - PLAIN)

    points = [
        (len(set(e["config"]) - PLAIN), c["floor_us"], c["name"], e["estimate_us"], n, m, c, set(e["config"]) - PLAIN)
        for c in wanted
        for n, candidate in enumerate(c["candidates"])
        for m, e in enumerate(candidate["configs"])
        if "error" not in e
    ]
    for many, *_, n, m, case, options in sorted(points, key=lambda p: (-p[0], *p[1:6])):
        if many and options - seen and (case["name"] in found or len(found) < most):
            take(case, [n, m])
    for case in sorted(wanted, key=lambda c: c["floor_us"]):
        if len(found) < most and case["function"] not in {c["function"] for c, _ in found.values()}:
            take(case, [case["best"]["candidate"], case["best"]["config"]])
    return list(found.values())


class Run:
    """One run over a manifest.

    Args:
        folder: what `prepare` wrote.
        results: the results file; what it holds already is kept.
        plan: how time is spent.
        say: told one line a step.
        child: makes a child process.
        earlier: results of other runs, which are carried in.
        known: results of configurations alone: what they tell of is not timed once more before the baselines.

    Raises:
        UsageError: a results file cannot be read, or they are of several devices.
    """

    def __init__(
        self,
        folder: Path,
        results: Path,
        plan: Plan,
        say: Callable[[str], None] = print,
        child: Callable[[], EventWorker] | None = None,
        *,
        earlier: Sequence[Path] = (),
        known: Path | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.results = results
        self.plan = plan
        self.say = say
        self.manifest: Mapping[str, Any] = json.loads((folder / "manifest.json").read_text())
        environment = device_environment(plan.cache.resolve(), plan.device)
        self._new = child or (lambda: EventWorker(module_command(CHILD), environment))
        self.body = together(map(read_results, [*earlier, *[results] * results.exists()]))
        self.known = read_results(known) if known is not None else {"cases": []}
        # One child for all cases: it starts anew after a crash or a hang alone.
        self._child = self._new()
        self.start = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return self.plan.budget_s - (time.monotonic() - self.start)

    def cases(self, names: Sequence[str] = ()) -> list[Mapping[str, Any]]:
        """Those that are to be measured, all or by parts of names: new ones first, the suite's, likely losses first."""
        rows = {r["name"]: r for r in self.body["cases"]}

        def again(c: Mapping[str, Any]) -> bool:
            return c["name"] in rows

        chosen = [
            c
            for c in self.manifest["cases"]
            if "error" not in c
            and named(c, names)
            and not (again(c) and (self._settled(rows[c["name"]]) or rows[c["name"]].get("tries", 1) >= TRIES))
        ]
        return sorted(chosen, key=lambda c: (again(c), c["group"] != "suite", -self._relative_time(c)))

    def _settled(self, row: Mapping[str, Any]) -> bool:
        wanted = [b for b in COMPILERS if self.plan.baselines and (not self.plan.only or b in self.plan.only)]
        return settled(row, wanted)

    def _relative_time(self, record: Mapping[str, Any]) -> float:
        """Of a case what its kernels take, as far as that is known, in what torch.compile is estimated to take."""
        times = [t["measured_us"] for t in self._known_trials(record)]
        us = min(times, default=record.get("estimate_us") or 0.0)
        return float(us) / float(record.get("compiled_estimate_us") or record.get("baseline_estimate_us") or 1e9)

    def _known_trials(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What an earlier run tells of the case's configurations, where they are still the same."""
        trials = [t for r in self.known["cases"] if r["name"] == record["name"] for t in r["trials"]]
        keys = [[e["key"] for e in c["configs"]] for c in record["candidates"]]

        def same(t: Mapping[str, Any]) -> bool:
            n, m = t["candidate"], t["config"]
            return bool(n < len(keys) and m < len(keys[n]) and keys[n][m] == t["key"])

        return [t for t in trials if t["error"] <= 1.0 and same(t)]

    def run(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """Measure what is left, case by case; the results, also written to the file.

        Raises:
            BackendError: there is no device, or too few configurations compile for it.
            UsageError: earlier results are of another device.
        """
        try:
            # What was carried in comes back whatever happens.
            self.write()
            self._describe()
            self.write()
            cases = self.cases(names)
            if self.plan.compile_ahead_s > 0:
                self.compile(cases)
            for record in cases:
                if self.left < 15.0:
                    self.say(f"{self.left:.0f} s are left: the rest is for another run")
                    break
                start = time.monotonic()
                row = self._case(record)
                row["seconds"] = time.monotonic() - start
                row["run"] = len(self.body["runs"]) - 1
                self._keep(row)
                self.write()
                self.say(line(row))
        finally:
            self._child.close()
        return self.body

    def _keep(self, row: dict[str, Any]) -> None:
        """Put a row in its place; one of an earlier run stays where it tells more."""
        places = [n for n, r in enumerate(self.body["cases"]) if r["name"] == row["name"]]
        if not places:
            self.body["cases"].append({**row, "tries": 1})
        for n in places:
            old = self.body["cases"][n]
            self.body["cases"][n] = {**better(old, row), "tries": old.get("tries", 1) + 1}

    def write(self) -> None:
        """The results as far as they are, whole or not at all."""
        self.body["summary"] = summary(self.body["cases"])
        self.results.parent.mkdir(parents=True, exist_ok=True)
        spare = self.results.with_suffix(".tmp")
        spare.write_text(json.dumps(self.body, indent=1) + "\n", encoding="utf-8")
        spare.replace(self.results)

    def _describe(self) -> None:
        told: dict[str, Any] = {}
        for event in self._child.ask({"op": "describe", "device": self.plan.device}, 120.0):
            if event["event"] == "device":
                told = {k: event[k] for k in ("device", "versions", "ceilings", "interpreted") if k in event}
            elif event.get("error") or event["event"] == "lost":
                raise BackendError(
                    "no device",
                    why=event.get("error") or event.get("why") or "the child says nothing of it",
                    fix="run it where a GPU is; without one, `prepare` prints estimates",
                )
        for other in (self.body, self.known):
            _same_device(other, told)
        told["clocks"] = clocks() if self.plan.device == "cuda" else {}
        told["prepared_with"] = self.manifest["versions"]
        self.body |= told
        self.body.setdefault("runs", []).append(told)

    def compile(self, cases: Sequence[Mapping[str, Any]]) -> Tally:
        """Compile ahead; what fails fails again in its case, where it is noted.

        Raises:
            BackendError: too few configurations compile.
        """
        until = time.monotonic() + min(self.plan.compile_ahead_s, max(0.0, self.left - 60.0))
        common = {"op": "compile", "folder": str(self.folder), "device": self.plan.device}
        jobs = [
            {**common, "case": c, "candidate": n}
            for c in cases
            for n, candidate in enumerate(c["candidates"])
            if any("error" not in e for e in candidate["configs"])
        ]
        slow = [{**common, "case": c, "baseline": COMPILED} for c in cases if self.plan.baselines]
        entries = [e for c in cases for candidate in c["candidates"] for e in candidate["configs"]]
        tally = Tally(sum("error" not in e for e in entries))

        def drain(queue: list[dict[str, Any]]) -> int:
            child, done = self._new(), 0
            try:
                while time.monotonic() < until and not tally.hopeless:
                    try:
                        job = queue.pop(0)
                    except IndexError:
                        break
                    done += self._compile_one(child, job, tally, until)
            finally:
                child.close()
            return done

        own = max(1, self.plan.compilers - (self.plan.baseline_compilers if slow else 0))
        queues = [jobs] * own + ([slow] * self.plan.baseline_compilers if slow else [])
        modules, baselines = len(jobs), len(slow)
        start = time.monotonic()
        with ThreadPoolExecutor(len(queues)) as threads:
            done = list(threads.map(drain, queues))
        text = f"compiled ahead in {time.monotonic() - start:.0f} s: {tally}, {sum(done[:own])} of {modules} modules"
        self.say(text + (f", {sum(done[own:])} of {baselines} of {COMPILED}" if baselines else ""))
        self.body["compiled_ahead"] = tally.as_dict()
        if not tally.enough or tally.hopeless:
            raise BackendError(
                "too few configurations compile for this device",
                where=str(self.folder),
                why=str(tally),
                fix="prepare the folder anew; `benchmarks/gpu.py compile` tries it without a GPU",
            )
        return tally

    def _compile_one(self, child: EventWorker, job: Mapping[str, Any], tally: Tally, until: float) -> bool:
        """Whether a baseline, or one configuration of a candidate at least, was compiled."""
        skip: list[Any] = []
        compiled, again = 0, True
        while again and time.monotonic() < until:
            again, begun = False, None
            for event in child.ask({**job, "skip": [*skip]}, 120.0, until):
                match event["event"]:
                    case "begin":
                        begun = event.get("trial")
                    case "compiled":
                        compiled += 1
                        skip.append(event["trial"])
                        tally.count()
                    case "failed":
                        skip.append(event["trial"])
                        tally.count(event["why"])
                    case "done" if "baseline" in job:
                        compiled += not event.get("error")
                    case "lost" if begun is not None and begun not in skip:
                        # Who was at it is left out; the others go on. At the end of the time nobody is to blame.
                        again = time.monotonic() < until
                        if again:
                            skip.append(begun)
                            tally.count(event["why"])
                    case "done" | "lost" if "candidate" in job:
                        # What of the module was not tried will not be: it cannot be loaded, for one.
                        why = event.get("error") or event.get("why", "")
                        wanted = job["case"]["candidates"][job["candidate"]]["configs"]
                        for _ in range(sum("error" not in e for e in wanted) - len(skip) if why else 0):
                            tally.count(why)
        return compiled > 0

    def smoke(self, names: Sequence[str] = (), most: int = SMOKED) -> list[str]:
        """Call a few configurations of a few cases once or twice, one of every option; what is wrong with them.

        Raises:
            BackendError: there is no device.
        """
        wrong = []
        try:
            self._describe()
            for record, trials in smoked(self.manifest["cases"], names, most):
                request = {"op": "smoke", "case": record, "folder": str(self.folder), "device": self.plan.device}
                for event in self._child.ask({**request, "trials": trials}, self.plan.silence_s):
                    why = event.get("why") or ""
                    if event["event"] == "trial" and not event["error"] <= 1.0:
                        why = f"its error is {event['error']:.3g} times what is allowed"
                    elif event["event"] == "done":
                        why = event.get("error", "")
                    if why or event["event"] == "trial":
                        n, m = event.get("trial", (0, 0))
                        text = f"{record['name']}: {record['candidates'][n]['configs'][m]['key']}: {why or 'right'}"
                        self.say(text)
                        wrong += [text] * bool(why)
        finally:
            self._child.close()
        return wrong

    def _case(self, record: Mapping[str, Any]) -> dict[str, Any]:
        until = time.monotonic() + min(self.plan.case_s, max(10.0, self.left))
        request = {"case": record, "folder": str(self.folder), "device": self.plan.device}
        failures: list[dict[str, Any]] = []
        found = self._known_trials(record)
        if not found:
            found, failures = self._trials(self._child, request, until)
        ranked = sorted((t["measured_us"], t["candidate"], t["config"]) for t in found if t["error"] <= 1.0)
        timed = self._confirm(self._child, request, record, ranked, failures, until)
        kept: dict[str, Any] = {
            "trials": found,
            "failures": failures,
            "clocks": clocks() if self.plan.device == "cuda" else {},
        }
        if self.body.get("interpreted"):
            kept["evidence"] = INTERPRETED
        row = measured_row(record, timed, kept)
        if (row["speedup"] or 0.0) > INCREDIBLE and time.monotonic() < until:
            # Once more, for longer and in a process of its own: the lesser gain counts.
            child = self._new()
            try:
                timed = self._confirm(child, request, record, ranked, failures, until, LONGER)
            finally:
                child.close()
            rows = [r for r in (row, measured_row(record, timed, kept)) if r["speedup"]]
            row = min(rows, key=lambda r: r["speedup"]) | {"speedups": [r["speedup"] for r in rows]}
        return row

    def _trials(
        self, child: EventWorker, request: Mapping[str, Any], until: float
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        found: list[dict[str, Any]] = []
        failures: list[dict[str, Any]] = []
        seen: list[Any] = []
        end = time.monotonic() + self.plan.trials_s
        candidates = request["case"]["candidates"]
        again = True
        while again and time.monotonic() < until:
            again = False
            left = max(1.0, end - time.monotonic())
            begun: Any = None
            for event in child.ask(
                {"op": "trials", "skip": seen, "seconds": left, **request}, self.plan.silence_s, until
            ):
                match event["event"]:
                    case "begin":
                        begun = event["trial"]
                    case "trial":
                        n, m = begun
                        entry = candidates[n]["configs"][m]
                        seen.append(begun)
                        found.append(
                            {
                                "candidate": n,
                                "config": m,
                                "key": entry["key"],
                                "model_us": entry["model_us"],
                                "estimate_us": entry["estimate_us"],
                                "times_us": entry.get("times_us", []),
                                "measured_us": event["us"],
                                "error": event["error"],
                            }
                        )
                    case "failed":
                        seen.append(event["trial"])
                        failures.append({"contender": f"prism {event['trial']}", "why": event["why"]})
                    case "lost":
                        # Who was at it is left out; without a culprit there is no point in trying again.
                        again = begun is not None and begun not in seen
                        name = f"prism {begun}" if again else "case"
                        failures.append({"contender": name, "why": event["why"]})
                        seen.append(begun)
                    case "done" if event.get("error"):
                        failures.append({"contender": "case", "why": event["error"]})
        return found, failures

    def _confirm(
        self,
        child: EventWorker,
        request: Mapping[str, Any],
        record: Mapping[str, Any],
        ranked: Sequence[tuple[float, int, int]],
        failures: list[dict[str, Any]],
        until: float,
        times: int = 1,
    ) -> dict[str, Any]:
        contenders = [f"prism {n} {m}" for _, n, m in ranked[: self.plan.finalists]]
        if self.plan.baselines:
            named = ["eager", "torch.compile", *record["baselines"]]
            contenders += [n for n in named if not self.plan.only or n in self.plan.only]
        timed: dict[str, Any] = {}
        again = True
        while again and contenders and time.monotonic() < until:
            again = False
            begun = ""
            limits = {"rounds": times * self.plan.rounds, "seconds": times * self.plan.confirm_s}
            asked = {"contenders": contenders, **limits}
            # Time is left for the others, should one have to be killed.
            now = time.monotonic()
            end = now + FIRST_PART * (until - now)
            for event in child.ask({"op": "confirm", **asked, **request}, self.plan.silence_s, end):
                match event["event"]:
                    case "begin":
                        begun = event["contender"]
                    case "timed":
                        timed[event["contender"]] = event
                    case "failed":
                        failures.append({"contender": event["contender"], "why": event["why"]})
                        contenders = [c for c in contenders if c != event["contender"]]
                    case "lost":
                        failures.append({"contender": begun or "timed rounds", "why": event["why"]})
                        again = begun in contenders
                        contenders = [c for c in contenders if c != begun]
                    case "done" if event.get("error"):
                        failures.append({"contender": "case", "why": event["error"]})
        return timed


def line(row: Mapping[str, Any]) -> str:
    """One line about a measured case."""
    start = f"{row['name']:42s} {row['seconds']:5.1f} s  floor {row['floor_us']:8.2f} us"
    if row["prism_us"] is None:
        why = row["failures"][0]["why"] if row["failures"] else "no time was left"
        return f"{start}  no kernel was timed: {why}"
    text = f"{start}  prism {row['prism_us']:8.2f} ({row['share_of_floor']:.2f} of the floor)"
    if row["speedup"]:
        text += f"  {row['speedup']:.2f}x of {row['best_baseline']}"
    if row["evidence"] == INTERPRETED:
        text += f"  {INTERPRETED}"
    failed = len(row["failures"])
    return text + (f"  {failed} failed" if failed else "")


def device_environment(cache: Path, device: str) -> dict[str, str]:
    """The environment of the child that uses the device: caches under `cache`, one thread where numpy computes."""
    env = child_environment(
        TRITON_INTERPRET=None,
        TRITON_CACHE_DIR=str(cache / "triton"),
        TORCHINDUCTOR_CACHE_DIR=str(cache / "inductor"),
    )
    if device == "interpreter":
        env |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return env


def clocks() -> dict[str, str]:
    """What nvidia-smi says of clocks, temperature and power; empty where it says nothing."""
    try:
        done = run_tool(["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"], 10)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [v.strip() for v in done.output.strip().splitlines()[0].split(",")] if done.output.strip() else []
    return dict(zip(CLOCKS.split(","), values, strict=False))
