"""From what the user has to a Program."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from prism.api.given_inputs import by_name
from prism.errors import IllegalIRError, ModelError, UsageError
from prism.program import spec
from prism.program.assumptions import Stated, check_examples, read_assumptions, under
from prism.program.between import differences
from prism.program.chunked import chunked
from prism.program.nodes import Program
from prism.program.operators import Operator
from prism.program.recurrences import direct, looped
from prism.program.rolled import rolled
from prism.program.stated import Assumption
from prism.program.written import pieces_at_once

if TYPE_CHECKING:
    import torch

    Examples: TypeAlias = torch.Tensor | Sequence[torch.Tensor]


def load(
    path: str | os.PathLike[str],
    *,
    assume: Stated = (),
    rules: Sequence[Path | str] = (),
    check: bool = True,
    empty: Collection[str] = (),
) -> Program:
    """The program of an ONNX file.

    Args:
        path: the file.
        assume: what is so of the inputs, as for `trace`.
        rules: rule files of your own: what nodes of the domain `prism` mean, `prism::softcap` for instance, their
            declarations say. See docs/rules.md.
        check: compare the program with the model, which onnx's reference runtime evaluates, node by node on a few
            inputs; `program.conformance` says on which.
        empty: symbolic dimensions that are 0, as the length of a past where there is none yet: what is made of the
            program is for that alone, and of one that has them free for lengths from 1 on.

    Raises:
        ConformanceError: the program does not compute what the model does: a bug in prism.
        ModelError: the file cannot be read or is not ONNX.
        RuleError: a rule file cannot be read, or a declaration in it is not right.
        UnsupportedError: it holds something that prism has no translation for.
        ShapeError: its shapes do not add up.
        UsageError: this is no path.
    """
    from prism.frontend.onnx.reader import load as load_file

    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(
            f"this is a {type(path).__name__}, and no path",
            where="load_onnx",
            fix="write the model to a file, with onnx.save, and give its path",
        )
    program = _legal(load_file(path, operators=_declared(rules), check=check, empty=empty), path)
    return replace(under(program, assume), source=Path(path).resolve())


def load_bytes(data: bytes, name: str) -> Program:
    """The program of an ONNX model in memory, which is not compared with it.

    Args:
        data: the model.
        name: what it is called in errors; the program is called after it.
    """
    from prism.frontend.onnx.reader import from_bytes

    return _legal(from_bytes(data, name), name)


def _legal(program: Program, path: str | os.PathLike[str]) -> Program:
    try:
        spec.check(program)
    except IllegalIRError as error:
        raise ModelError(
            "the model is not legal",
            where=f"{path}, {error.where}",
            why=error.what,
            fix="check it with onnx.checker.check_model(path, full_check=True), and report a right one",
        ) from error
    return _recognised(program)


def several(examples: Examples) -> tuple[torch.Tensor, ...]:
    """Example inputs as a tuple: one tensor by itself is the only one, not one for each of its rows.

    Raises:
        UsageError: they are neither.
    """
    import torch

    if isinstance(examples, torch.Tensor):
        return (examples,)
    if not isinstance(examples, Iterable):
        raise UsageError(
            f"example inputs are a {type(examples).__name__}",
            where="trace",
            fix="give the tensors that the function is called with, as a tuple",
        )
    return tuple(examples)


def trace(
    fn: Callable[..., Any],
    example_inputs: Examples,
    *,
    name: str | None = None,
    dynamic_shapes: Any = None,
    assume: Stated = (),
    rules: Sequence[Path | str] = (),
    check: bool = True,
) -> Program:
    """The program of a torch function or module, by `torch.export` on example inputs.

    Args:
        fn: a function of tensors, or a module.
        example_inputs: tensors, or the one that the function takes; their shapes and data types are the program's.
        name: the program's name; the function's by default.
        dynamic_shapes: as `torch.export.export` takes it, for symbolic dimensions.
        assume: what is so of the inputs, as ["x > 0"] or {"x": "> 0"}: ranges, `x != 0`, `x in {0, 1}`; see
            `prism.program.assumptions`. Rules use it, so what is found of the program is for such inputs alone, and
            says so; the emitted function checks its arguments on request. Examples must be as stated.
        rules: rule files of your own: what custom operators of torch mean, their declarations say; `mylib::softcap` is
            the operator `softcap`. See docs/rules.md.
        check: compare the program with the function, node by node on the example inputs and a few others;
            `program.conformance` says on which.

    Raises:
        ConformanceError: the program does not compute what the function does: a bug in prism.
        UnsupportedError: it calls something that prism has no translation for.
        RuleError: a rule file cannot be read, or a declaration in it is not right.
        UsageError: what is assumed is no statement, contradicts itself, is not of an input, or not so of an example.
    """
    from prism.frontend.torch.reader import trace as trace_function

    operators, examples = _declared(rules), several(example_inputs)
    program = trace_function(fn, examples, name=name, dynamic_shapes=dynamic_shapes, operators=operators, check=check)
    spec.check(program)
    check_passed(read_assumptions(assume), program, examples)
    return replace(under(_recognised(program), assume), source=fn)


def check_passed(stated: Mapping[str, Assumption], program: Program, examples: Sequence[torch.Tensor]) -> None:
    """Check examples of a program's inputs, in order, as far as they have values.

    Raises:
        UsageError: an element of one is not as stated.
    """
    passed = [t.name for t in program.arguments]
    if stated and len(passed) == len(examples):
        held = {n: e for n, e in zip(passed, examples, strict=True) if not e.is_meta}
        check_examples(stated, by_name(held, held))


def _recognised(program: Program) -> Program:
    """The program in which what source wrote out is what it was: recurrences, pieces of one tensor, running sums."""
    return chunked(differences(direct(rolled(looped(pieces_at_once(program))))))


def _declared(rules: Sequence[Path | str]) -> tuple[Operator, ...]:
    if not rules:
        return ()
    from prism.api.user_rules import declared

    return declared(rules)
