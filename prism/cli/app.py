"""The command line: options in, exit code out. Every failure becomes one line on stderr and the code of its kind.

Exit codes: 0 done; 1 internal error; 2 usage; 3 the model is damaged or not supported; 4 nothing better was found, or
`prove` could not tell; 5 verification failed, or `prove` found that the two differ; 130 interrupted.
"""

from __future__ import annotations

import errno
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter
from cyclopts.validators import Number

from prism.cli.interrupts import interrupted_once, is_kept, to_be_closed, to_go_on
from prism.cli.models import Model
from prism.errors import (
    ExitCode,
    FaultyModelError,
    NoImprovementError,
    PrismError,
    UnsupportedError,
    UsageError,
    debugging,
)
from prism.process.imports import uncollected
from prism.process.serve import refused_by_machine

if TYPE_CHECKING:
    from prism.api import SearchBudget
    from prism.cli.progress import Progress
    from prism.process.deadline import Deadline

Target = Literal["sm_80", "sm_89", "sm_90", "sm_100", "cuda", "cpu"]
Baseline = Literal["eager", "compile", "onnxruntime"]
FpClass = Literal["exact", "reassociates", "domain"]
_Bound = Annotated[int | None, Parameter(validator=Number(gte=1))]

_EPILOGUE = (
    "Exit codes: 0 done; 1 internal error; 2 usage; 3 model damaged or not supported; 4 no improvement found, or not "
    "decided; 5 verification failed, or refuted; 130 interrupted. PRISM_DEBUG=1 shows tracebacks."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        The exit code, one of `ExitCode`.
    """
    with interrupted_once():
        return _run(argv)


def _run(argv: Sequence[str] | None) -> int:
    debug = debugging()
    _never_fail_to_encode()
    try:
        with warnings.catch_warnings():
            if not debug and not sys.warnoptions:
                warnings.simplefilter("ignore")  # libraries' own, of no use to the user; ours are events
            code = _app()(
                list(sys.argv[1:] if argv is None else argv),
                exit_on_error=False,
                print_error=False,
                result_action="return_value",
            )
            return int(code or 0)
    except CycloptsError as e:
        return _fail(f"{str(e).rstrip('.')}; see prism --help", ExitCode.USAGE, debug)
    except PrismError as e:
        return _fail(e.one_line(), e.exit_code, debug)
    except KeyboardInterrupt as e:
        for line in to_go_on(argv, kept=is_kept(e)):
            _say(line)
        return _fail("interrupted", ExitCode.INTERRUPTED, debug=False)
    except MemoryError:
        return _fail(
            "the machine has not enough memory for this model; take a part of it, or smaller shapes (--shape)",
            ExitCode.USAGE,
            debug,
        )
    except OSError as e:
        refused = _refused_by_machine(e)
        return _fail(refused or _internal(e), ExitCode.USAGE if refused else ExitCode.INTERNAL, debug)
    except Exception as e:  # the last line of defence: no traceback reaches a user who did not ask for it
        return _fail(_internal(e), ExitCode.INTERNAL, debug)


def _app() -> App:
    from prism.cli.bench import bench
    from prism.cli.cache import cache_app
    from prism.cli.rules import rules_app
    from prism.cli.verify import explain, verify

    app = App(
        name="prism",
        help="A symbolic superoptimizer for tensor programs: an ONNX model in, proved and tuned kernels out.",
        help_epilogue=_EPILOGUE,
        version=_version,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
    )
    app.command(optimize)
    app.command(prove)
    app.command(show)
    app.command(rules_app())
    app.command(bench)
    app.command(verify)
    app.command(explain)
    app.command(cache_app())
    return app


@dataclass(frozen=True)
class Bounds:
    """What bounds the search; what is left out is as `SearchBudget` has it.

    Attributes:
        max_kernels: the most kernels that a candidate may have, but for second stages of splits, and what outputs over
            other axes take besides the first; 3 by default. Rounds after the first go on to as many as the operators
            one by one take, where that gains.
        max_ops: the most operators in one kernel; 64 by default.
        max_loops: the most loops in one kernel; 6 by default.
        max_forms: the most forms (one way to compute each value) that are walked; 16 by default.
        max_cuts: the most values of a form that the first round considers for materialisation together; 6 by default.
        max_families: the most families of kernels that the first round builds; 80 by default.
        max_rounds: the most rounds, each with twice the cuts and families of the one before; 3 by default.
        max_sgraphs: the most candidates that are handed to the prover; 32 by default.
        enodes: the e-graph's node budget; 8000 by default.
        iterations: the most rounds of the rules; 16 by default.
        off: a pruner to switch off, by its name in docs/search.md; give it again for others. Slower, never better.
        fp: what the rules used may do to rounding: "exact" nothing, "reassociates" other orders of sums and products,
            "domain", the default, also other places of overflow and NaN.
    """

    max_kernels: _Bound = None
    max_ops: _Bound = None
    max_loops: _Bound = None
    max_forms: _Bound = None
    max_cuts: _Bound = None
    max_families: _Bound = None
    max_rounds: _Bound = None
    max_sgraphs: _Bound = None
    enodes: _Bound = None
    iterations: _Bound = None
    off: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    fp: FpClass = "domain"

    def budget(self) -> SearchBudget:
        """The bounds with all that is left out."""
        with uncollected():
            import prism.api as api

        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        return api.SearchBudget(**given | ({"off": frozenset(self.off)} if self.off else {}))


_BOUNDS = Bounds()


def optimize(
    model: Model,
    /,
    *,
    target: Target | None = None,
    out: Annotated[Path | None, Parameter(alias="-o")] = None,
    trials: Annotated[int, Parameter(validator=Number(gte=1))] = 12,
    seed: Annotated[int, Parameter(validator=Number(gte=0))] = 0,
    shape: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    outside: Literal["original"] | None = None,
    search: Annotated[Bounds, Parameter(name="*")] = _BOUNDS,
    rules: Annotated[tuple[Path, ...], Parameter(negative=())] = (),
    baseline: Annotated[tuple[Baseline, ...], Parameter(negative=())] = (),
    inputs: Path | None = None,
    assume: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    budget: str | None = None,
    anew: Annotated[bool, Parameter(negative=())] = False,
    check: bool = True,
    verbose: Annotated[bool, Parameter(negative=())] = False,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Find, prove and tune kernels for an ONNX model, and write them to a folder.

    Args:
        model: the ONNX file.
        target: what to tune for. "cuda" times on this machine's GPU and is the default where there is one; "cpu"
            compiles C++, times it on this machine's CPU and is the default elsewhere; the others cross-compile Triton
            and estimate.
        out: the output folder, by default MODEL's name with ".prism" in the current folder. An earlier output folder
            is replaced; anything else that exists is not.
        trials: the most configurations to try.
        seed: of the search and of the inputs drawn for the checks.
        shape: NAME=VALUE: the value of a symbolic dimension to tune at; give it again for others. The kernels that come
            out take all values from 1 on; of NAME=0, as of a past that is empty, that alone. NAME=LOW..HIGH: kernels
            for these lengths, tuned part by part, and a module that picks among them; other lengths are refused.
        outside: what runs at lengths outside of ranges: "original" is the model that was given, in onnxruntime.
        search: what bounds it.
        rules: a rule file of your own; give it again for others. docs/rules.md says how to write one.
        baseline: what kernels are timed against where they are timed: torch "eager" or "compile", "onnxruntime"; give
            it again for others. By default eager and onnxruntime, or "compile" where onnxruntime does not run the model
            (on a GPU, or as it is not installed); the best of them counts.
        inputs: a file of numpy.savez with an array for each input of the model: what comes out is checked on these,
            too, and tuned at their shapes.
        assume: what is so of an input, as "x > 0", "x != 0", "x in [0, 1]", "x in {0, 1}": the kernels are for such
            inputs alone, and their function checks them on request; give it again for others.
        budget: the time that the run may take, as 60s, 5m or 1h: it ends then, with the best that is proved, checked
            and measured by that time. What it finished is kept: the same command gives the same again, at once, and one
            with more time, or without a limit, goes on.
        anew: time everything again, instead of using what an earlier run stored.
        check: compare the program with the model as it is read, by onnx's reference runtime; on by default.
        verbose: show every step.
        json: print the report as JSON instead of the summary.
    """
    from prism.cli.progress import Progress
    from prism.platforms.begun import Begun, begin, has_ended, note_ended
    from prism.process.deadline import Deadline, since_start
    from prism.process.files import hash_ahead
    from prism.report.folder import check_writable

    hash_ahead(model)
    seconds = _seconds(budget)
    values, ranges = _shapes(shape)
    empty = [name for name, n in values.items() if not n]
    if outside is not None and not ranges:
        raise UsageError("there is no range", where="--outside", fix="give one, as in --shape seq=1..4096")
    time_given = None if seconds is None else Deadline(time.monotonic() + seconds - since_start(), seconds)
    own = _own(rules)
    folder = check_writable(out if out is not None else Path(f"{model.stem}.prism"))

    # What was found before is probably stored, and needs no children.
    asked = repr((target, shape, outside, trials, seed, baseline, search))
    stored = not anew and (folder.exists() or has_ended(model, asked))
    begun = Begun() if stored or rules else begin(target, search.fp)

    def run(progress: Progress, within: Deadline | None, again: bool) -> Callable[[], None]:
        progress.ends = None if within is None else within.end
        with uncollected():
            import prism.api as api

        given = None if inputs is None else api.read_inputs(inputs)
        program = None
        with progress.recorder.stage("load") as detail:
            why = api.better_in_parts(model, target, baseline or None)
            if not why:
                try:
                    program, compared = api.load_compared(model, assume=assume, check=check, empty=empty, **own)
                except FaultyModelError:
                    raise
                except UnsupportedError as error:
                    why = error.what
                else:
                    detail += ["compared with the model before"] if compared else []
                    why = api.left_for_types(program, target, baseline or None)
            if why:
                program = None
                detail.append(f"in parts: {why}")
        options: dict[str, Any] = {
            "target": target,
            "out": folder,
            "budget": search.budget(),
            "trials": trials,
            "seed": seed,
            "shapes": {name: n for name, n in values.items() if n},
            "listener": progress.listen,
            "baselines": baseline or None,
            "anew": again,
            "inputs": given,
            "seconds": within,
            "begun": begun,
            **own,
        }
        from prism.cli import output

        def in_parts() -> Callable[[], None]:
            if ranges:
                over = api.optimize_model_ranges(
                    model, ranges, check=check, original=outside is not None, **options | {"shapes": values}
                ).report
                return partial(output.print_ranged_report, over, folder=folder, as_json=json)
            whole = api.optimize_model(model, check=check, **options | {"shapes": values}).report
            return partial(output.print_model_report, whole, folder=folder, as_json=json)

        if program is None:
            if assume:
                raise UsageError(
                    "nothing may be stated of the inputs of a model that goes in parts",
                    where="--assume",
                    why=f"it is not read whole: {detail[-1]}",
                    fix="leave it away, or give the part of the model that it is about",
                )
            return in_parts()
        try:
            if ranges:
                original = None if outside is None else model
                over = api.optimize_ranges(program, ranges, original=original, **options).report
                return partial(output.print_ranged_report, over, folder=folder, as_json=json)
            report = api.optimize(program, **options).report
            return partial(output.print_report, report, folder=folder, as_json=json)
        except PrismError as error:
            # What fails keeps its operators, and the rest does not fail with it.
            if not error.in_part or assume or not api.may_go_in_parts(target, baseline or None):
                raise
            progress.recorder.warn(f"{model} goes in parts: {error.one_line()}")
        return in_parts()

    interrupt: KeyboardInterrupt | None = None
    with Progress(verbose=verbose) as progress, begun:
        try:
            printed = run(progress, time_given, anew)
        except KeyboardInterrupt as error:
            if not progress.measured or not to_be_closed(error):
                raise
            interrupt = error
        except NoImprovementError:
            note_ended(model, asked)
            raise
        # Outside of its handler, so that another Ctrl-C ends this, too.
        if interrupt is not None:
            printed = _closed(partial(run, progress), progress, interrupt)
    printed()
    if interrupt is not None:
        raise interrupt
    note_ended(model, asked)
    return ExitCode.DONE


def _closed(
    run: Callable[[Deadline, bool], Callable[[], None]], progress: Progress, interrupt: KeyboardInterrupt
) -> Callable[[], None]:
    """Write what a run has finished that was interrupted; raises the interrupt again where that is nothing."""
    from prism.api.time_limit import CLOSED_S
    from prism.process.deadline import Deadline

    progress.recorder.warn(
        f"interrupted: what is finished is put together, checked, timed and written, within {CLOSED_S:g} s; "
        "another Ctrl-C ends at once"
    )
    try:
        return run(Deadline.to_close(CLOSED_S), False)
    except PrismError as error:
        progress.recorder.warn(f"nothing is written: {error.reason}")
    raise interrupt


def _own(rules: tuple[Path, ...]) -> dict[str, Any]:
    """The user's rule files as an argument, where there are any."""
    from prism.cli.rules import own_rules

    found = own_rules(rules)
    return {"rules": found} if found else {}


def _seconds(given: str | None) -> float | None:
    """A time as a number of seconds: 90, 60s, 5m, 1h."""
    if given is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|h)?", given.strip())
    seconds = float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2] or "s"] if found else 0.0
    if seconds <= 0.0:
        raise UsageError(f"{given!r} is no time", where="--budget", fix="write it as in --budget 60s, 5m or 1h")
    return seconds


def _shapes(given: tuple[str, ...]) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
    """NAME=VALUE as a mapping, and NAME=LOW..HIGH as another."""
    values: dict[str, int] = {}
    ranges: dict[str, tuple[int, int]] = {}
    for text in given:
        found = re.fullmatch(r"([^=]+)=(\d+)(?:\.\.(\d+))?", text, re.ASCII)
        if found is None:
            fix = "write it as in --shape seq=2048, or --shape seq=1..4096"
            raise UsageError(f"{text!r} is neither NAME=VALUE nor NAME=LOW..HIGH", where="--shape", fix=fix)
        name, low, high = found.groups()
        if name in values or name in ranges:
            raise UsageError(f"{name} is given twice", where="--shape", fix="give one value, or one range, of each")
        if high is None:
            values[name] = int(low)
        else:
            ranges[name] = (int(low), int(high))
    return values, ranges


def prove(
    a: Model,
    b: Model,
    /,
    *,
    assume: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    rules: Annotated[tuple[Path, ...], Parameter(negative=())] = (),
    check: bool = True,
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Tell whether two ONNX models compute the same, for all inputs: exit 0 proved, 5 refuted, 4 unknown.

    Args:
        a: the reference model.
        b: the candidate model.
        assume: what is so of an input of the reference, as "x > 0", "x != 0", "x in [0, 1]", "x in {0, 1}": the two are
            compared where it is; give it again for others.
        rules: a rule file of your own; give it again for others.
        check: compare the programs with the models as they are read, by onnx's reference runtime; on by default.
        json: print the verdict as JSON.
    """
    from prism.cli.output import print_verdict
    from prism.cli.progress import Progress
    from prism.program.verdict import Status

    with Progress() as progress:
        with uncollected():
            import prism.api as api

        with progress.recorder.stage("prove"):
            verdict = api.prove_models(a, b, assume=assume, check=check, **_own(rules))
    print_verdict(verdict, as_json=json)
    codes = {
        Status.PROVED: ExitCode.DONE,
        Status.REFUTED: ExitCode.VERIFICATION_FAILED,
        Status.UNKNOWN: ExitCode.NO_IMPROVEMENT,
    }
    return codes[verdict.status]


def show(model: Model, /, *, check: bool = True) -> int:
    """Print an ONNX model as a program in index notation, what that takes for granted, and what it was compared with.

    Of a model that holds something without a translation: its islands, what stays as it is, and why.

    Args:
        model: the ONNX file.
        check: compare the program with the model, by onnx's reference runtime; on by default.
    """
    with uncollected():
        import prism.api as api
    from prism.cli.output import write_line
    from prism.program.integers import assumptions

    try:
        program = api.load(model, check=check)
    except FaultyModelError:
        raise
    except UnsupportedError as error:
        write_line("\n".join(api.shown_in_parts(model, error)))
        return ExitCode.DONE
    write_line(str(program))
    for clause in assumptions(program):
        write_line(f"assuming {clause}")
    write_line(str(program.conformance or "not compared with the model: --no-check"))
    for skipped in program.conformance.skipped if program.conformance is not None else ():
        write_line(f"  {skipped}")
    return ExitCode.DONE


def _version() -> str:
    import prism

    return f"prism {prism.__version__}"


def _refused_by_machine(error: OSError) -> str:
    """The error in one line, where the machine refused; else nothing."""
    no_temporary = isinstance(error, FileNotFoundError) and "temporary directory" in str(error)
    if not refused_by_machine(error) and not no_temporary:
        return ""
    where = f"{error.filename}: " if error.filename and not no_temporary else ""
    room = no_temporary or error.errno in (errno.ENOSPC, errno.EDQUOT)
    fix = "make room, or set TMPDIR to a folder that has it" if room else "raise the limit, or give prism access"
    return f"{where}this machine refused: {error.strerror or error}; {fix}"


def _internal(error: Exception) -> str:
    """An unforeseen exception in one line, with the place in prism that it passed through last."""
    frames = traceback.extract_tb(error.__traceback__)
    package = Path(__file__).parents[1]
    ours = [f for f in frames if Path(f.filename).is_relative_to(package)]
    place = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return (
        f"internal error: {type(error).__name__}: {error}{place}; "
        "this is a bug in prism: run again with PRISM_DEBUG=1 for the traceback, and report it"
    )


def _fail(message: str, code: ExitCode, debug: bool) -> int:
    """Say it in one line on stderr; control characters, as a model's names may hold, do not reach the terminal."""
    if debug:
        traceback.print_exc()
    line = " ".join(message.split())
    line = "".join(c if c.isprintable() else "?" for c in line)
    _say(f"prism: error: {line}")
    return int(code)


def _say(line: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)


def _never_fail_to_encode() -> None:
    """Let a terminal that cannot show a character show an escape rather than end the run."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
