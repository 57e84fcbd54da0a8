"""Are two programs the same function?"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from prism.api.loading import check_passed, load, several, trace
from prism.api.user_rules import rule_paths
from prism.errors import refusing_depth
from prism.program.assumptions import Stated, of_inputs, over, read_assumptions, values_of
from prism.program.integers import assumptions, legal_places
from prism.program.loops import written_out
from prism.program.nodes import Program
from prism.program.stated import POSITIVE, Assumption
from prism.program.verdict import Status, Verdict

if TYPE_CHECKING:
    from prism.api.loading import Examples
    from prism.egraph.worker import Worker


def prove(
    reference: Callable[..., Any],
    candidate: Callable[..., Any],
    example_inputs: Examples,
    *,
    assume: Stated = (),
    rules: Sequence[Path | str] = (),
    check: bool = True,
) -> Verdict:
    """Whether two torch functions compute the same, over the reals, at the shapes of the example inputs.

    Args:
        reference: what is to be computed.
        candidate: what may compute it.
        example_inputs: for their shapes and types.
        assume: what is so of the reference's inputs, as ["x > 0"] or {"x": "> 0"}: the two are compared where it is so,
            there alone. Ranges, `x != 0`, `x in {0, 1}`; see `prism.program.assumptions`. Examples must be as stated.
        rules: rule files of your own, beside those that ship with prism; see docs/rules.md.
        check: compare the programs with the functions as they are traced; see `trace`.

    Returns:
        A verdict: `proved`, `refuted` with inputs at which they differ, or `unknown` with the reason. Unless it is
        refuted, its reason ends with what the identity test over finite fields says.

    Raises:
        UnsupportedError: one of them calls something that prism has no translation for.
        ShapeError: their outputs have different shapes.
        VerificationError: the identity test contradicts a proof: a bug in prism, or in a rule of your own.
        RuleError: a rule file is not right, or one of its rules is wrong.
        UsageError: what is assumed is no statement, contradicts itself, is not of an input, or not so of an example.
    """
    files = rule_paths(rules)
    stated = read_assumptions(assume)
    a = trace(reference, example_inputs, name="reference", rules=rules, check=check)
    b = trace(candidate, example_inputs, name="candidate", rules=rules, check=check)
    check_passed(stated, a, several(example_inputs))
    return _proved(a, b, files, stated)


def prove_models(
    reference: str | os.PathLike[str],
    candidate: str | os.PathLike[str],
    *,
    assume: Stated = (),
    rules: Sequence[Path | str] = (),
    check: bool = True,
) -> Verdict:
    """Whether two ONNX models compute the same, over the reals; see `prove`."""
    files = rule_paths(rules)
    stated = read_assumptions(assume)
    one, other = (load(model, rules=rules, check=check) for model in (reference, candidate))
    return _proved(one, other, files, stated)


def _proved(a: Program, b: Program, files: Sequence[Path] | None, stated: Mapping[str, Assumption]) -> Verdict:
    from prism.egraph.worker import Worker

    with Worker(files) as worker:
        return verdict_where(a, b, stated, worker, rules=files) if stated else verdict_on(a, b, worker, rules=files)


def verdict_where(
    a: Program,
    b: Program,
    stated: Mapping[str, Assumption],
    worker: Worker,
    *,
    rules: Sequence[Path] | None = None,
) -> Verdict:
    """Whether two programs compute the same where the inputs of the first are as stated; see `verdict_on`.

    What holds for all positive numbers is tried first, where a set is part of them: its formula is the simplest. Only
    a proof counts there.

    Raises:
        UsageError: something is stated of what is no input, or of a type with no such number.
    """
    from prism.egraph.prove.matching import paired_inputs
    from prism.egraph.prove.smaller_inputs import written

    a, b = written_out(a), written_out(b)
    held = of_inputs(stated, a)
    dtypes = {t.name: t.dtype for t in a.inputs}
    wide = {n: POSITIVE if s.positive and dtypes[n].is_float else s for n, s in held.items()}
    taken = {t.name for p in (a, b) for t in (*p.inputs, *(d.tensor for d in p.definitions))}
    free = {n: next(x for k in count() if (x := f"{n}_free{k or ''}") not in taken) for n in held}
    said = tuple(f"{n} {s}" for n, s in stated.items())
    pairs = {x.name: y.name for x, y in paired_inputs(a, b)}
    for sets in (held,) if wide == held else (wide, held):
        one = over(a, {n: (free[n], s) for n, s in sets.items()})
        other = over(b, {pairs[n]: (free[n], s) for n, s in sets.items()})
        verdict = verdict_on(one, other, worker, rules=rules)
        if verdict:
            return verdict.assuming(said)
    found = {n: np.asarray(v) for n, v in verdict.counterexample.items()}
    back = {y: x for x, y in free.items()}
    found = {back.get(n, n): values_of(held[back[n]], dtypes[back[n]], v) if n in back else v for n, v in found.items()}
    reason = verdict.reason
    if found:
        reason = f"{reason.partition(', where ')[0]}, where {written(found)}"
    return replace(verdict, reason=f"{reason}; only {' and '.join(said)} was looked at", counterexample=found)


def verdict_on(a: Program, b: Program, worker: Worker, *, rules: Sequence[Path] | None = None) -> Verdict:
    """Whether two programs that were read compute the same; see `prove`.

    Runtimes refuse places beside what is looked up in: where it takes that to decide, the verdict names it. The worker
    may have proved others before; its rule files are those that ship with prism where `rules` is None.
    """
    from prism.api.second_opinion import with_opinion
    from prism.egraph.prove.programs import examine_programs

    with refusing_depth(a.name):
        found = examine_programs(a, b, worker=worker)
        if found.verdict:
            granted = dict.fromkeys((*assumptions(a), *assumptions(b), *_unlike_types(a, b)))
            found = replace(found, verdict=found.verdict.assuming(tuple(granted)))
        verdict = with_opinion(found, rules=rules, name=a.name)
    if verdict.status is Status.UNKNOWN and (legal := _legal_places(a, b)):
        there = verdict_where(a, b, legal, worker, rules=rules)
        return verdict if there.status is Status.UNKNOWN else there
    return verdict


def _legal_places(a: Program, b: Program) -> dict[str, Assumption]:
    """Of inputs whose elements one of two programs looks something up by, where these lie, by the first one's names."""
    from prism.egraph.prove.matching import paired_inputs

    found, theirs = legal_places(a), legal_places(b)
    for x, y in paired_inputs(a, b):
        if y.name in theirs:
            found[x.name] = found.get(x.name, Assumption()).both(theirs[y.name])
    return {name: held for name, held in found.items() if not held.empty}


def _unlike_types(a: Program, b: Program) -> list[str]:
    """Outputs that the two give in other types, of which a proof compares the numbers, as an assumption."""
    said = []
    for names in zip(a.outputs, b.outputs, strict=True):
        one, other = (p.definition(name).tensor for p, name in zip((a, b), names, strict=True))
        if one.dtype is not other.dtype:
            said.append(f"that types do not matter: {one.name} is {one.dtype.value} and {other.dtype.value}")
    return said
