"""A second opinion on proofs: identity testing over finite fields, by code that shares nothing with the prover.

Every distinct denotation is tested once. Where the tester finds a difference in what was proved, one of the two has a
bug: the run stops, and what it takes to look into it is written to a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from prism.egraph.prove.equality import Examined
from prism.egraph.prove.matching import Matched
from prism.egraph.rules import read_rule_files, rule_files
from prism.errors import UsageError, VerificationError
from prism.events import Artifacts
from prism.folders import cache_root
from prism.program.assumptions import placed
from prism.program.identity.testing import Opinion, Outcome, compare
from prism.program.identity.values import Evaluator
from prism.program.nodes import Expr, Formula, Program, SymbolRange, Tensor
from prism.program.verdict import Status, Verdict
from prism.sgraph.denote import Denotation, split_axes
from prism.sgraph.nodes import SGraph
from prism.sgraph.show import text


def opinion_of(
    reference: Sequence[Expr],
    denotation: Denotation,
    tensors: Sequence[Tensor],
    ranges: Mapping[str, SymbolRange],
    seed: int = 0,
    kept: dict[Hashable, Evaluator] | None = None,
) -> Opinion:
    """What the tester says of an sGraph's denotation.

    The reference is not expanded over (part, rest), so that this is tested, too; `kept` are evaluations of other
    denotations, see `compare`.
    """
    parts = {e: (split_axes(e)[0].extent, split_axes(e)[1].extent) for e in denotation.split}
    # What is drawn is as stated: formulas of any numbers, which the tester knows nothing of.
    one, other = placed(reference, tensors), placed(denotation.outputs, tensors)
    return compare(one, other, tensors=tensors, ranges=ranges, parts=parts, seed=seed, kept=kept)


@dataclass(slots=True)
class SecondOpinions:
    """The tester beside the prover, for one program."""

    program: Program  # what was searched
    formulas: Sequence[Formula]  # its outputs, inlined
    seed: int = 0  # of the draws
    rules: Sequence[Path] | None = None  # the rule files that were used, None for those that ship with prism
    _known: dict[Denotation, Opinion] = field(default_factory=dict)
    _kept: dict[Hashable, Evaluator] = field(default_factory=dict)

    def ahead(self, denotation: Denotation) -> Opinion:
        """The opinion on what may come to be proved; a disagreement says nothing yet."""
        known = self._known.get(denotation)
        if known is None:
            reference = [f.expr for f in self.formulas]
            known = opinion_of(reference, denotation, self.program.inputs, self.program.ranges, self.seed, self._kept)
            self._known[denotation] = known
        return known

    def of(self, sgraph: SGraph, denotation: Denotation) -> Opinion:
        """The opinion on a proved sGraph; those that denote the same share it.

        Raises:
            VerificationError: the tester disagrees with the prover; a bug report was written.
        """
        known = self.ahead(denotation)
        if known.outcome is Outcome.DISAGREE:
            candidate = {"sGraph": text(sgraph), "denotation": "\n".join(map(str, denotation.outputs))}
            raise disagreement(self.program.name, known, {"program": str(self.program), **candidate}, self.rules)
        return known


def with_opinion(examined: Examined, rules: Sequence[Path] | None = None, name: str = "candidate") -> Verdict:
    """The prover's verdict on two programs, with the tester's opinion as a last clause; refuted ones need none.

    A bug report is called after `name`; without `rules` they are those that ship with prism.

    Raises:
        VerificationError: it is `proved`, and the tester disagrees; a bug report was written.
    """
    verdict = examined.verdict
    if verdict.status is Status.REFUTED:
        return verdict
    opinions: list[Opinion] = []
    for part, both in examined.parts:
        opinions.append(_of_programs(part, both))
        if verdict and opinions[-1].outcome is Outcome.DISAGREE:
            texts = {"reference": _text(both.reference), "candidate": _text(both.candidate)}
            raise disagreement(name, opinions[-1], texts, rules)
    opinion = merged(opinions)
    if opinion is None:
        return verdict
    return replace(verdict, reason=f"{verdict.reason}; {opinion}" if verdict.reason else str(opinion))


def _text(formulas: Sequence[Formula]) -> str:
    return "\n".join(f"{f.tensor.name}[{', '.join(map(str, f.index))}] = {f.expr}" for f in formulas)


def _of_programs(examined: Examined, both: Matched) -> Opinion:
    """The tester's opinion on what the prover has compared."""
    read = examined.read
    if read is None:
        return Opinion(Outcome.NOT_APPLICABLE, 0, 0, None, ("outputs are stored by indices that do not meet",))
    if not examined.verdict and both.apart(read.left, read.right):
        # It draws weights, too: those that are not known to be related would be independent.
        return Opinion(Outcome.NOT_APPLICABLE, 0, 0, None, ("the two hold other weights",))
    return compare(read.left, read.right, tensors=both.tensors, ranges=both.ranges)


def disagreement(
    name: str, opinion: Opinion, texts: Mapping[str, str], rules: Sequence[Path] | None = None
) -> VerificationError:
    """The error for a proof that the tester contradicts; writes the bug report.

    `texts` are what was proved, by title; without `rules` they are those that ship with prism.
    """
    hashes = dict(read_rule_files(rules or rule_files()).hashes)
    try:
        report = f"report it with {write_bug_report(cache_root() / 'bug-reports', name, opinion, texts, hashes)}"
    except (OSError, UsageError):  # nowhere to write it: the disagreement is what has to be told
        report = "report it with the model"
    return VerificationError(
        "the prover and the identity test disagree",
        where=name,
        why=opinion.where,
        fix=f"{report}: this is a bug in prism or in a rule",
    )


def write_bug_report(
    folder: Path, name: str, opinion: Opinion, texts: Mapping[str, str], hashes: Mapping[str, str]
) -> Path:
    """Write what was proved, where the tester differs, what was drawn, and the rules' hashes; the file's path."""
    parts = {
        "The prover says that these are equal; the identity test says that they are not": str(opinion),
        **texts,
        "rules, SHA-256": "\n".join(f"{file} {digest}" for file, digest in sorted(hashes.items())),
        "drawn": opinion.inputs,
    }
    body = "\n\n".join(f"# {title}\n\n{content}" for title, content in parts.items()) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{hashlib.sha256(body.encode()).hexdigest()[:12]}.txt"
    path.write_text(body, encoding="utf-8")
    return path


def recorded(artifacts: Artifacts, opinion: Opinion | None) -> Artifacts:
    """The artifacts with the opinion in the report and in the proof record."""
    said = str(opinion or "")
    report, proof = replace(artifacts.report, identity=said), replace(artifacts.proof, identity=said)
    return replace(artifacts, report=report, proof=proof)


def merged(opinions: Iterable[Opinion | None]) -> Opinion | None:
    """The weakest of the opinions on the parts of a program, as one: fewest rounds, largest bound."""
    given = [o for o in opinions if o is not None]
    if not given:
        return None
    outside = tuple(dict.fromkeys(text for o in given for text in o.outside))
    bounds = [o.bound for o in given]
    bound = None if None in bounds else max(b for b in bounds if b is not None)
    weakest = next((o for o in given if o.outcome is Outcome.NOT_APPLICABLE), given[0])
    rounds = min(o.rounds for o in given)
    return replace(
        weakest, rounds=rounds, compared=sum(max(o.compared, 0) for o in given), bound=bound, outside=outside
    )
