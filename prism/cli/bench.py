"""`prism bench`: kernels against torch on this machine's GPU; where there is none, estimates that say so."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number

from prism.cli.models import Model
from prism.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from prism.cost.device import Device
    from prism.program.nodes import Program


def bench(
    model: Model | None = None,
    /,
    *,
    kernels: Path | None = None,
    case: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    out: Path = Path("prism-bench"),
    trials: Annotated[int, Parameter(validator=Number(gte=1))] = 12,
    seconds: Annotated[int, Parameter(validator=Number(gte=1))] = 600,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Time kernels against torch eager and torch.compile on this machine's GPU; without one, print estimates.

    Each contender runs as one CUDA graph over copies of the inputs larger than the L2 cache, in turn with the others;
    its outputs are poisoned before and checked against float64 after.

    Args:
        model: the ONNX file; without it, the suite of docs/benchmarks.md.
        kernels: an output folder of prism optimize for the model: its kernels are timed and nothing is searched.
        case: of the suite, only cases whose name holds this; give it again for others.
        out: the folder for modules and results. A run goes on where an earlier one stopped.
        trials: configurations of each case.
        seconds: of measuring, in all.
        json: print the results as JSON.
    """
    from prism.backends.triton.device import describe_gpu
    from prism.cli.output import write_line

    if kernels is not None and model is None:
        raise UsageError("--kernels needs the model", where="prism bench", fix="prism bench MODEL --kernels OUT")
    if model is not None and case:
        raise UsageError("--case is of the suite", where="prism bench", fix="leave out the model, or --case")
    gpu = describe_gpu()
    records = _suite(case, out, trials, gpu) if model is None else [_own(model, kernels, out, trials, gpu)]
    body = _estimates(records) if gpu is None else _measured(out, seconds)
    if json:
        write_line(msgspec.json.format(msgspec.json.encode(body), indent=2).decode())
    else:
        from prism.bench.results import ESTIMATED, markdown

        if gpu is None:
            write_line(f"No GPU was found: every time below is {ESTIMATED}.\n")
        write_line(markdown(body["cases"]))
    return ExitCode.DONE


def _target(gpu: Device | None) -> str:
    from prism.cost.device import DEVICES
    from prism.platforms.choice import ESTIMATED

    return gpu.target if gpu is not None and gpu.target in DEVICES else ESTIMATED


def _suite(case: tuple[str, ...], out: Path, trials: int, gpu: Device | None) -> list[dict[str, Any]]:
    """The suite's cases, prepared."""
    from prism.bench.prepare import Effort, prepare
    from prism.bench.suite import CASES

    chosen = [c for c in CASES if not case or any(n in c.name for n in case)]
    if not chosen:
        raise UsageError(f"no case is called {case[0]}", where="--case", fix=f"there is {CASES[0].name}, for one")
    effort = Effort(points=trials, spread=0, targets=())
    return prepare(chosen, out, effort=effort, say=_progress, target=_target(gpu))


def _own(model: Path, kernels: Path | None, out: Path, trials: int, gpu: Device | None) -> dict[str, Any]:
    """The user's model, prepared; with the kernels of an output folder, if one is given."""
    from prism.api.loading import load
    from prism.bench.prepare import Effort, describe, from_output, own_case, prepare, save_program, write_manifest

    program: Program = load(model)
    one = own_case(program)
    if kernels is not None:
        record = from_output(describe(one), program, kernels, out)
    else:
        effort = Effort(points=trials, spread=0, targets=())
        programs = {one.name: program}
        (record,) = prepare([one], out, effort=effort, say=_progress, programs=programs, target=_target(gpu))
    record["program"] = save_program(program, out)
    write_manifest(out, [record], {})
    return record


def _estimates(records: list[dict[str, Any]]) -> dict[str, Any]:
    from prism.bench.prepare import versions
    from prism.bench.results import ESTIMATED, estimated_row

    return {"evidence": ESTIMATED, "versions": versions(), "cases": [estimated_row(r) for r in records]}


def _measured(out: Path, seconds: int) -> dict[str, Any]:
    from prism.bench.measure import Plan, Run

    plan = Plan(budget_s=float(seconds), compilers=4, baseline_compilers=2, cache=out / "cache-device")
    return Run(out, out / "results.json", plan, _progress).run()


def _progress(text: str) -> None:
    import sys

    print(text, file=sys.stderr, flush=True)
