"""Are two programs the same function?"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism.api.loading import load, trace
from prism.api.rules import rule_paths
from prism.errors import refusing_depth
from prism.program.integers import assumptions
from prism.program.nodes import Program
from prism.program.verdict import Verdict

if TYPE_CHECKING:
    import torch

    from prism.egraph.worker import Worker


def prove(
    reference: Callable[..., Any],
    candidate: Callable[..., Any],
    example_inputs: Sequence[torch.Tensor],
    *,
    rules: Sequence[Path | str] = (),
    check: bool = True,
) -> Verdict:
    """Whether two torch functions compute the same, over the reals, at the shapes of the example inputs.

    Args:
        reference: what is to be computed.
        candidate: what may compute it.
        example_inputs: for their shapes and types.
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
    """
    files = rule_paths(rules)
    a = trace(reference, example_inputs, name="reference", rules=rules, check=check)
    b = trace(candidate, example_inputs, name="candidate", rules=rules, check=check)
    return _proved(a, b, files)


def prove_models(
    reference: str | os.PathLike[str],
    candidate: str | os.PathLike[str],
    *,
    rules: Sequence[Path | str] = (),
    check: bool = True,
) -> Verdict:
    """Whether two ONNX models compute the same, over the reals; see `prove`."""
    files = rule_paths(rules)
    return _proved(load(reference, rules=rules, check=check), load(candidate, rules=rules, check=check), files)


def _proved(a: Program, b: Program, files: Sequence[Path] | None) -> Verdict:
    from prism.egraph.worker import Worker

    with Worker(files) as worker:
        return verdict_on(a, b, worker, rules=files)


def verdict_on(a: Program, b: Program, worker: Worker, *, rules: Sequence[Path] | None = None) -> Verdict:
    """Whether two programs that were read compute the same; see `prove`.

    Args:
        a: the reference.
        b: the candidate.
        worker: of the e-graph; it may have proved others before.
        rules: the rule files that the worker has, None for those that ship with prism.
    """
    from prism.api.second_opinion import with_opinion
    from prism.egraph.prove.programs import examine_programs

    with refusing_depth(a.name):
        found = examine_programs(a, b, worker=worker)
        if found.verdict:
            granted = dict.fromkeys((*assumptions(a), *assumptions(b), *_unlike_types(a, b)))
            found = replace(found, verdict=found.verdict.assuming(tuple(granted)))
        return with_opinion(found, rules=rules, name=a.name)


def _unlike_types(a: Program, b: Program) -> list[str]:
    """Outputs that the two give in other types, of which a proof compares the numbers, as an assumption."""
    said = []
    for names in zip(a.outputs, b.outputs, strict=True):
        one, other = (p.definition(name).tensor for p, name in zip((a, b), names, strict=True))
        if one.dtype is not other.dtype:
            said.append(f"that types do not matter: {one.name} is {one.dtype.value} and {other.dtype.value}")
    return said
