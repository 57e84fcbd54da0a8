"""The numeric gate: emitted kernels, run on many inputs at many shapes, against the float64 oracle and eager's error.

A proof over the reals says nothing of rounding, nor of the emitter; this does. Without a GPU the kernels run in Triton's
interpreter, which takes about 5 ms for one loop iteration of one program: of the kernels that nothing reads from, only a
sample of programs runs (corners and a few between), and what those wrote is compared.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import sympy

from prism.backends.protocol import Config
from prism.backends.triton.crosscompile import plain, worker_command, worker_environment
from prism.errors import VerificationError
from prism.events import CheckSummary
from prism.instantiate.draws import DRAWS, draw_inputs
from prism.instantiate.gate import judge
from prism.instantiate.workers import Ending, Worker
from prism.program.extents import Extent, evaluate
from prism.program.nodes import Program
from prism.sgraph.nodes import Grid, Kernel, LoopRole, SGraph, Split

ITERATION_S = 0.005
"""What the interpreter takes for one loop iteration of one program, seconds."""
CASE_LIMIT_S = 120.0
"""A case that takes longer is hung."""
CASE_TARGET_S = 2.0
"""What a case may cost in the interpreter before its programs are sampled, seconds."""
LEAST_SAMPLE = 5
LARGEST_EXTENT = 200
"""Symbolic extents are checked up to here, tile sizes beyond it at their range's low end."""


@dataclass(frozen=True, slots=True)
class Output:
    """An output as a runner found it: values as float64, and which elements were written."""

    values: np.ndarray
    written: np.ndarray


class Runner(Protocol):
    """Runs the kernels of an emitted module."""

    name: str
    sampling: bool

    def run(
        self,
        module: Path,
        config: Config,
        inputs: Sequence[Any],
        outputs: Sequence[tuple[tuple[int, ...], str]],
        samples: Sequence[int | None],
    ) -> list[Output] | str:
        """The outputs, or one line about why there are none.

        Args:
            module: the emitted module.
            config: the configuration.
            inputs: torch tensors on the CPU.
            outputs: shape and dtype of each output.
            samples: for each launch, how many of its programs to run; None for all.
        """
        ...


class KernelRunner:
    """Runs kernels in a child process: in Triton's interpreter, or on the GPU.

    Args:
        device: `interpreter` or `cuda`.
        name: what reports call it.
    """

    def __init__(self, device: str = "interpreter", name: str = "") -> None:
        self._device = device
        self.sampling = device == "interpreter"
        self.name = name or ("Triton's interpreter" if self.sampling else device)
        environment = worker_environment()
        if self.sampling:
            environment["TRITON_INTERPRET"] = "1"
        self._worker = Worker(worker_command("prism.backends.triton.check_worker"), environment)

    def run(
        self,
        module: Path,
        config: Config,
        inputs: Sequence[Any],
        outputs: Sequence[tuple[tuple[int, ...], str]],
        samples: Sequence[int | None],
    ) -> list[Output] | str:
        """See Runner."""
        import torch

        with tempfile.TemporaryDirectory(prefix="prism-check-") as folder:
            given, results = Path(folder) / "inputs.pt", Path(folder) / "results.pt"
            torch.save(list(inputs), given)
            request = {
                "module": str(module),
                "config": plain(config),
                "device": self._device,
                "inputs": str(given),
                "results": str(results),
                "outputs": [[list(shape), dtype] for shape, dtype in outputs],
                "samples": list(samples),
            }
            reply = self._worker.ask(request, CASE_LIMIT_S)
            if reply.ending is not Ending.ANSWERED:
                return f"{reply.ending.value}: {reply.detail}"
            if reply.answer.get("error"):
                return str(reply.answer["error"])
            return [Output(t.to(torch.float64).numpy(), w.numpy()) for t, w in torch.load(results)]

    def close(self) -> None:
        """Kill the child."""
        self._worker.close()

    def __enter__(self) -> KernelRunner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a kind of draw at one binding of the symbols, under one configuration."""

    draw: str
    binding: Mapping[str, int]
    config: Config
    seed: int

    def __str__(self) -> str:
        at = ", ".join(f"{k}={v}" for k, v in sorted(self.binding.items()))
        return f"{self.draw} inputs" + (f" at {at}" if at else "") + f" with {self.config.key()}"


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What the gate found.

    Attributes:
        runner: where the kernels ran.
        cases: how many cases ran.
        worst: by draw, the largest error as a multiple of what is allowed.
        failures: one line for each case that did not pass.
        sampled: how many cases ran only a sample of some kernel's programs.
    """

    runner: str
    cases: int
    worst: Mapping[str, float]
    failures: tuple[str, ...]
    sampled: int = 0

    @property
    def passed(self) -> bool:
        """Whether every case passed."""
        return not self.failures

    def summary(self) -> CheckSummary:
        """The report as the run's report shows it.

        Raises:
            VerificationError: a case did not pass.
        """
        if self.failures:
            raise VerificationError(
                "an emitted kernel computes something else than the model",
                why=self.failures[0],
                fix="report it: the sGraph was proved, so the emitter or the rounding is at fault",
            )
        return CheckSummary(self.runner, self.cases, self.worst)


def check_module(
    program: Program,
    module: Path,
    sgraph: SGraph,
    config: Config,
    *,
    seed: int = 0,
    runner: Runner,
    alternatives: Sequence[Config] = (),
    stop_at_failure: bool = True,
) -> CheckReport:
    """Check an emitted module.

    Args:
        program: the program that it implements.
        module: the emitted module.
        sgraph: its sGraph.
        config: the chosen configuration: checked on ordinary inputs at every shape.
        seed: of the draws.
        runner: where the kernels run.
        alternatives: other feasible configurations; the cheapest to interpret is used for the adversarial draws.
        stop_at_failure: whether to leave the other cases when one has failed.
    """
    worst: dict[str, float] = {}
    failures: list[str] = []
    done = sampled = 0
    for case in plan_cases(program, sgraph, config, alternatives, seed):
        samples = plan_samples(sgraph, case.config, case.binding) if runner.sampling else [None] * len(sgraph.kernels)
        ratio, reasons = _run_case(program, module, sgraph, case, samples, runner)
        done += 1
        sampled += any(s is not None for s in samples)
        worst[case.draw] = max(worst.get(case.draw, 0.0), ratio)
        failures += [f"{case}: {r}" for r in reasons]
        if failures and stop_at_failure:
            break
    return CheckReport(runner.name, done, worst, tuple(failures), sampled)


def _run_case(
    program: Program, module: Path, sgraph: SGraph, case: Case, samples: Sequence[int | None], runner: Runner
) -> tuple[float, list[str]]:
    from prism.backends.eager import eager
    from prism.program.evaluate import evaluate as oracle_of

    tensors = draw_inputs(program, case.draw, case.binding, case.seed)
    exact = oracle_of(program, {name: _float64(t) for name, t in tensors.items()})
    given = dict(
        zip(program.outputs, map(_float64, eager(program)(*(tensors[t.name] for t in program.inputs))), strict=True)
    )
    shapes = [(tuple(evaluate(e, case.binding) for e in t.shape), t.dtype.value) for t in sgraph.outputs]
    found = runner.run(module, case.config, [tensors[t.name] for t in sgraph.inputs], shapes, samples)
    if isinstance(found, str):
        return math.inf, [found]
    ratio, reasons = 0.0, []
    everything = all(s is None for s in samples)
    for t, output in zip(sgraph.outputs, found, strict=True):
        verdict = judge(output.values, exact[t.name], given[t.name], t.dtype, output.written, everything)
        ratio = max(ratio, verdict.ratio)
        if not verdict:
            reasons.append(f"{t.name}: {verdict.reason}")
    return ratio, reasons


def _float64(tensor: Any) -> np.ndarray:
    import torch

    return np.asarray(tensor.detach().to(torch.float64).cpu().numpy())


def plan_cases(
    program: Program, sgraph: SGraph, config: Config, alternatives: Sequence[Config] = (), seed: int = 0
) -> list[Case]:
    """The cases, in order: ordinary inputs at every kind of shape, then each adversarial draw at one of them."""
    bindings = plan_bindings(program, sgraph, config)
    cases = [Case("normal", b, config, seed * 1000 + n) for n, b in enumerate(bindings)]
    cheap = min([config, *alternatives], key=lambda c: cost_s(sgraph, c, plan_bindings(program, sgraph, c)[0]))
    shapes = plan_bindings(program, sgraph, cheap)
    if cheap != config:
        cases += [Case("normal", b, cheap, seed * 1000 + 50 + n) for n, b in enumerate(shapes)]
    # Ragged shapes first: a wrong mask shows there.
    order = shapes[2:] + shapes[:2]
    adversarial = [d for d in DRAWS if d != "normal"]
    return cases + [Case(d, order[n % len(order)], cheap, seed * 1000 + 100 + n) for n, d in enumerate(adversarial)]


def plan_bindings(program: Program, sgraph: SGraph, config: Config) -> list[dict[str, int]]:
    """Values of the symbolic extents: tile multiples, 1, one more and one less than a tile, and a mixture of those."""
    names = sorted(program.ranges)
    if not names:
        return [{}]
    tiles = {name: _tile(sgraph, name, config) for name in names}
    patterns = [
        [lambda t: t] * len(names),
        [lambda t: 1] * len(names),
        [lambda t: t + 1] * len(names),
        [lambda t: t - 1] * len(names),
        [(lambda t: t + 3, lambda t: 2, lambda t: 2 * t - 1)[n % 3] for n in range(len(names))],
    ]
    found: dict[tuple[int, ...], dict[str, int]] = {}
    for pattern in patterns:
        values = {}
        for name, change in zip(names, pattern, strict=True):
            held = program.ranges[name]
            values[name] = min(max(change(tiles[name]), held.low, 1), held.high, max(held.low, LARGEST_EXTENT))
        found.setdefault(tuple(values.values()), values)
    return list(found.values())


def _tile(sgraph: SGraph, name: str, config: Config) -> int:
    """The largest tile of an axis whose extent is that symbol; 4 when no axis has it, or its tiles are single elements."""
    sizes = [4]
    for kernel in sgraph.kernels:
        for axis, role in kernel.roles:
            if isinstance(axis.extent, sympy.Symbol) and axis.extent.name == name:
                match role:
                    case Grid(tile) | LoopRole(tile) | Split(_, tile):
                        sizes.append(_value(tile, config))
                    case _:
                        pass
    return max(sizes)


def _value(symbol: object, config: Config) -> int:
    return int(config.symbols[symbol.name]) if isinstance(symbol, sympy.Symbol) else int(str(symbol))


def _extent(extent: Extent, config: Config, binding: Mapping[str, int]) -> int:
    return evaluate(extent, {**config.symbols, **binding})


def _programs_and_steps(kernel: Kernel, config: Config, binding: Mapping[str, int]) -> tuple[int, int]:
    """How many programs a launch has, and how many loop iterations a program makes at most."""
    programs, steps = 1, 1
    for axis, role in kernel.roles:
        match role:
            case Grid(tile):
                programs *= math.ceil(_extent(axis.extent, config, binding) / _value(tile, config))
            case LoopRole(tile):
                steps *= math.ceil(_extent(axis.extent, config, binding) / _value(tile, config))
            case Split(parts, tile):
                shares = _value(parts, config)
                programs *= shares
                steps *= math.ceil(_extent(axis.extent, config, binding) / (shares * _value(tile, config)))
            case _:
                pass
    return programs, steps


def cost_s(sgraph: SGraph, config: Config, binding: Mapping[str, int]) -> float:
    """What the interpreter takes for all programs of all launches, seconds, roughly."""
    counts = (_programs_and_steps(k, config, binding) for k in sgraph.kernels)
    return sum(programs * steps * ITERATION_S for programs, steps in counts)


def plan_samples(sgraph: SGraph, config: Config, binding: Mapping[str, int]) -> list[int | None]:
    """For each launch, how many programs to run in the interpreter: all, unless nothing reads what it writes and it is long."""
    found: list[int | None] = []
    for n, kernel in enumerate(sgraph.kernels):
        later = {t for k in sgraph.kernels[n + 1 :] for t in k.reads}
        programs, steps = _programs_and_steps(kernel, config, binding)
        affordable = max(LEAST_SAMPLE, int(CASE_TARGET_S / (steps * ITERATION_S)))
        found.append(affordable if programs > affordable and not later & set(kernel.writes) else None)
    return found
