"""Rules and operators of the user's own, and what rules must pass before anything is proved by them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from prism.egraph.lint import Severity, lint
from prism.egraph.rules import load_rules, read_operators, rule_files
from prism.egraph.soundness.check import check_rule
from prism.errors import RuleError, other_kind
from prism.program.operators import Operator

TRUST_DRAWS = 400
"""Random draws that each of the user's rules must pass whenever it is used."""


def _files(rules: Sequence[Path | str | os.PathLike[str]]) -> tuple[Path, ...]:
    """The files, each once.

    Raises:
        UsageError: they are no paths.
    """
    if isinstance(rules, str | os.PathLike):
        raise other_kind("rules", rules, f"several paths: [{str(rules)!r}]")
    for rule in rules:
        if not isinstance(rule, str | os.PathLike):
            raise other_kind("a rule file", rule, "its path")
    return tuple(dict.fromkeys(Path(os.fspath(r)).resolve() for r in rules))


def declared(rules: Sequence[Path | str | os.PathLike[str]] = ()) -> tuple[Operator, ...]:
    """The operators that rule files declare.

    Raises:
        UsageError: they are no paths.
        RuleError: a file cannot be read, or a declaration is not right.
    """
    return read_operators(_files(rules))


def operators(*rules: Path | str | os.PathLike[str]) -> SimpleNamespace:
    """The operators that rule files declare, as functions of torch tensors and numbers.

        ops = prism.operators("softcap.egg")
        ops.softcap(torch.randn(4), 30.0)

    They are made of torch's own functions, so that they have gradients and may be traced, exported and compiled.

    Args:
        rules: rule files; see docs/rules.md.

    Returns:
        A namespace with a function of each operator's name.

    Raises:
        UsageError: they are no paths.
        RuleError: a file cannot be read, or a declaration is not right.
    """
    from prism.frontend.torch.declared import function

    return SimpleNamespace(**{op.name: function(op) for op in declared(rules)})


def rule_paths(rules: Sequence[Path | str | os.PathLike[str]] = ()) -> tuple[Path, ...] | None:
    """The rule files of a run: those that ship with prism and the given ones; None where none are given.

    What a wrong rule proves is wrong: so each rule of a given file is tested by random interpretation first. A file
    that is named twice counts once.

    Raises:
        UsageError: they are no paths.
        RuleError: a file cannot be read, a rule does not type-check, or a counterexample to it was found.
    """
    if not rules:
        return None
    shipped = rule_files()
    given = _files(rules)
    found, issues = lint(given, load_rules(shipped))
    for issue in issues:
        if issue.severity is Severity.ERROR:
            raise RuleError(issue.what, where=issue.where, fix=issue.fix or "see docs/rules.md")
    for rule in found:
        finding = check_rule(rule, draws=TRUST_DRAWS)
        if finding.counterexample or not finding.agreed:
            raise RuleError(
                f"rule {rule.name!r} is wrong" if finding.counterexample else f"rule {rule.name!r} cannot be tested",
                where=f"{rule.file}:{rule.line}",
                why=finding.counterexample or "no random draw satisfies its facts",
                fix=f"run prism rules check {rule.file}",
            )
    paths = (*shipped, *given)
    load_rules(paths)  # names of files and of rules must differ
    return paths
