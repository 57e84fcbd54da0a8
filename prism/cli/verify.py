"""`prism verify` and `prism explain`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from prism.cli.models import Model
from prism.errors import ExitCode, UsageError

_Rules = Annotated[tuple[Path, ...], Parameter(negative=())]


def verify(
    out: Path,
    /,
    *,
    model: Model | None = None,
    shape: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    rules: _Rules = (),
    json: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Check an output folder again: files, certificate, rules and versions; exit 5 when something does not fit.

    Args:
        out: the output folder of prism optimize.
        model: the ONNX file that it should be of: the proof must start from it, and the weights be its own.
        shape: NAME=0: a dimension of the model that the folder is for nothing of; give it again for others.
        rules: a rule file of your own that it was made with; give it again for others.
        json: print the findings as JSON.
    """
    from prism.api.loading import load
    from prism.api.verifying import Mismatch, of_parts
    from prism.api.verifying import verify as check
    from prism.cli.output import write_line
    from prism.cli.rules import own_rules

    # A model that goes in parts may be one that can be read whole.
    parted = of_parts(out)
    empty = [name for name, n in (text.rpartition("=")[::2] for text in shape) if n == "0"]
    if len(empty) < len(shape):
        fix = "leave other values away: kernels take all of them"
        raise UsageError("a length that is not 0", where="--shape", why="what is made for 0 is for that alone", fix=fix)
    program = (
        load(model, rules=own_rules(rules), check=False, empty=empty) if model is not None and not parted else None
    )
    found = check(out, program, rules=own_rules(rules))
    if parted and found and model is not None:
        from prism.api.whole_models import made_of
        from prism.report.model_folder import STOCK

        for folder in parted:
            other, name = made_of(folder, model, empty), (folder / STOCK).relative_to(out).as_posix()
            if other:
                found = replace(found, mismatches=(*found.mismatches, Mismatch(name, other)))
            else:
                found = replace(found, passed=(*found.passed, f"{name} is {model} with its islands as functions"))
    if json:
        body = {"schema": "prism.verification/1", "verified": bool(found), **msgspec.to_builtins(found)}
        write_line(msgspec.json.format(msgspec.json.encode(body), indent=2).decode())
    else:
        lines = [f"right  {what}" for what in found.passed] + [f"WRONG  {m}" for m in found.mismatches]
        wrong = len(found.mismatches)
        summary = "verified" if found else f"{wrong} thing does not fit" if wrong == 1 else f"{wrong} things do not fit"
        write_line("\n".join([*lines, f"{out}: {summary}" + (f", rung {found.rung}" if found.rung else "")]))
    return ExitCode.DONE if found else ExitCode.VERIFICATION_FAILED


def explain(out: Path, /, *, rules: _Rules = ()) -> int:
    """Print the derivation of an output folder: how the model's formula becomes what the kernels compute.

    Args:
        out: the output folder of prism optimize.
        rules: a rule file of your own that it was made with; give it again for others.
    """
    from prism.api.verifying import explain as lines
    from prism.cli.output import write_line
    from prism.cli.rules import own_rules

    write_line("\n".join(lines(out, rules=own_rules(rules))))
    return ExitCode.DONE
