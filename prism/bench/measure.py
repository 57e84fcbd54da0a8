"""Measuring a prepared folder on the device: the standard library here, torch and triton in child processes.

    describe  device, versions, and the rates that the card reaches now
    compile   prism's configurations and torch.compile's kernels ahead, in many processes
    trials    case by case, in one child: every configuration a little
    confirm   the best few against the baselines, interleaved, outputs checked; above 3x once more, for longer
    write     the results after each case, so that an interrupted run keeps them and `resume` goes on

A child that crashes or falls silent is killed; what it was at is noted as failed, and a new child goes on without it.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prism.bench.results import MEASURED, measured_row, summary
from prism.instantiate.confirm import INCREDIBLE, LONGER
from prism.process.child import child_environment, module_command, run_tool
from prism.process.worker import EventWorker

SCHEMA = "prism.bench.results/1"
CHILD = "prism.bench.child"
CLOCKS = "clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,power.draw,driver_version"


@dataclass(frozen=True, slots=True)
class Plan:
    """How a run spends its time.

    Attributes:
        device: `cuda`, or `interpreter` to run the same path without a GPU.
        budget_s: seconds in all; no case is begun after it.
        case_s: seconds of one case, all of it.
        trials_s: seconds of a case's trials.
        confirm_s: seconds of its timed rounds.
        silence_s: how long a child may be at one contender before it is killed.
        rounds: rounds at most.
        finalists: of prism's configurations that meet the baselines.
        baselines: whether they are timed (without, only configurations are: for the cost model).
        only: baselines that are timed; all that a case names, eager and torch.compile when empty.
        compile_ahead_s: seconds of compiling ahead at most; 0 leaves it out.
        compilers: processes that compile ahead.
        baseline_compilers: of these at a time with torch.compile, which times on the device itself.
        cache: where compiled kernels are kept.
    """

    device: str = "cuda"
    budget_s: float = 560.0
    case_s: float = 120.0
    trials_s: float = 6.0
    confirm_s: float = 3.0
    silence_s: float = 90.0
    rounds: int = 30
    finalists: int = 3
    baselines: bool = True
    only: tuple[str, ...] = ()
    compile_ahead_s: float = 240.0
    compilers: int = 14
    baseline_compilers: int = 4
    cache: Path = field(default_factory=lambda: Path("out") / "bench-cache")


class Run:
    """One run over a manifest.

    Args:
        folder: what `prepare` wrote.
        results: the results file; what it holds already is kept.
        plan: how time is spent.
        say: told one line a step.
        child: makes a child process.
    """

    def __init__(
        self,
        folder: Path,
        results: Path,
        plan: Plan,
        say: Callable[[str], None] = print,
        child: Callable[[], EventWorker] | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.results = results
        self.plan = plan
        self.say = say
        self.manifest: Mapping[str, Any] = json.loads((folder / "manifest.json").read_text())
        environment = device_environment(plan.cache.resolve(), plan.device)
        self._new = child or (lambda: EventWorker(module_command(CHILD), environment))
        # One child for all cases: it starts anew after a crash or a hang alone.
        self._child = self._new()
        self.start = time.monotonic()
        self.body: dict[str, Any] = {"schema": SCHEMA, "cases": []}
        if results.exists():
            self.body = json.loads(results.read_text())

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return self.plan.budget_s - (time.monotonic() - self.start)

    def cases(self, names: Sequence[str] = ()) -> list[Mapping[str, Any]]:
        """Those that are to be measured: all or by parts of names, none twice, the suite's first."""
        done = {r["name"] for r in self.body["cases"]}
        chosen = [
            c
            for c in self.manifest["cases"]
            if c["name"] not in done and "error" not in c and (not names or any(n in c["name"] for n in names))
        ]
        return sorted(chosen, key=lambda c: c["group"] != "suite")

    def run(self, names: Sequence[str] = ()) -> dict[str, Any]:
        """Measure what is left, case by case; the results, also written to the file."""
        try:
            self._describe()
            self.write()
            cases = self.cases(names)
            if self.plan.compile_ahead_s > 0:
                self._compile(cases)
            for record in cases:
                if self.left < 15.0:
                    self.say(f"{self.left:.0f} s are left: the rest is for another run")
                    break
                start = time.monotonic()
                row = self._case(record)
                row["seconds"] = time.monotonic() - start
                self.body["cases"].append(row)
                self.write()
                self.say(line(row))
        finally:
            self._child.close()
        return self.body

    def write(self) -> None:
        """The results as far as they are, whole or not at all."""
        self.body["summary"] = summary(self.body["cases"])
        self.results.parent.mkdir(parents=True, exist_ok=True)
        spare = self.results.with_suffix(".tmp")
        spare.write_text(json.dumps(self.body, indent=1) + "\n", encoding="utf-8")
        spare.replace(self.results)

    def _describe(self) -> None:
        for event in self._child.ask({"op": "describe", "device": self.plan.device}, 120.0):
            if event["event"] == "device":
                self.body |= {k: event[k] for k in ("device", "versions", "ceilings") if k in event}
            elif event.get("error") or event["event"] == "lost":
                raise RuntimeError(f"no device: {event.get('error') or event.get('why')}")
        self.body["prepared_with"] = self.manifest["versions"]
        self.body.setdefault("clocks", []).append(clocks() if self.plan.device == "cuda" else {})

    def _compile(self, cases: Sequence[Mapping[str, Any]]) -> None:
        """Compile ahead; what fails fails again in its case, where it is noted."""
        until = time.monotonic() + min(self.plan.compile_ahead_s, max(0.0, self.left - 60.0))
        jobs = [
            {"op": "compile", "case": c, "candidate": n, "folder": str(self.folder), "device": self.plan.device}
            for c in cases
            for n in range(len(c["candidates"]))
        ]
        slow = [
            {
                "op": "compile",
                "case": c,
                "baseline": "torch.compile",
                "folder": str(self.folder),
                "device": self.plan.device,
            }
            for c in cases
            if self.plan.baselines
        ]

        def drain(queue: list[dict[str, Any]]) -> int:
            child, done = self._new(), 0
            try:
                while queue and time.monotonic() < until:
                    try:
                        job = queue.pop(0)
                    except IndexError:
                        break
                    ended = list(child.ask(job, 120.0, until))[-1]
                    done += ended["event"] == "done"
            finally:
                child.close()
            return done

        own = max(1, self.plan.compilers - (self.plan.baseline_compilers if slow else 0))
        queues = [jobs] * own + ([slow] * self.plan.baseline_compilers if slow else [])
        total = len(jobs) + len(slow)
        start = time.monotonic()
        with ThreadPoolExecutor(len(queues)) as threads:
            done = sum(threads.map(drain, queues))
        self.say(f"compiled ahead: {done} of {total} modules in {time.monotonic() - start:.0f} s")

    def _case(self, record: Mapping[str, Any]) -> dict[str, Any]:
        until = time.monotonic() + min(self.plan.case_s, max(10.0, self.left))
        request = {"case": record, "folder": str(self.folder), "device": self.plan.device}
        found, failures = self._trials(self._child, request, until)
        ranked = sorted((t["measured_us"], t["candidate"], t["config"]) for t in found if t["error"] <= 1.0)
        timed = self._confirm(self._child, request, record, ranked, failures, until)
        kept: dict[str, Any] = {
            "trials": found,
            "failures": failures,
            "clocks": clocks() if self.plan.device == "cuda" else {},
        }
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
            for event in child.ask({"op": "confirm", **asked, **request}, self.plan.silence_s, until):
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
    if row["evidence"] != MEASURED or row["prism_us"] is None:
        why = row["failures"][0]["why"] if row["failures"] else "no time was left"
        return f"{start}  no kernel was timed: {why}"
    text = f"{start}  prism {row['prism_us']:8.2f} ({row['share_of_floor']:.2f} of the floor)"
    if row["speedup"]:
        text += f"  {row['speedup']:.2f}x of {row['best_baseline']}"
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
