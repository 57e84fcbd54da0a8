"""Output folders, checked again: what is in them, what proves them, and what they rest on here."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from prism.api.ranged import from_one, over
from prism.api.region_search import SearchBudget
from prism.api.user_rules import rule_paths
from prism.backends.weights import weights_file
from prism.checker import (
    CertificateError,
    Checked,
    Reader,
    Rule,
    Step,
    Term,
    Terms,
    check,
    digest,
    read_rules,
    stated_in,
)
from prism.cost.constant_folding import fold_constants
from prism.egraph.derivation.certificate import REPLAY_SCHEMA, Decoder, Encoder
from prism.egraph.language import TensorFacts
from prism.egraph.operators import constructor
from prism.egraph.prove.matching import over_names
from prism.egraph.rules import RuleSet, load_rules, rule_files
from prism.egraph.worker import Worker
from prism.errors import IllegalIRError, PrismError, UsageError, VerificationError
from prism.events import LockRecord, ProofRecord, RangedReport
from prism.instantiate.lock import program_hash, versions
from prism.process.deadline import processor_limit
from prism.program.assumptions import read_assumptions, under
from prism.program.extents import Extent
from prism.program.index import Axis, Index
from prism.program.nodes import DType, Expr, Formula, Program, Reduce, Tensor, walk
from prism.program.pieces import formulas_of
from prism.program.pretty import formula_lines
from prism.program.region import reads
from prism.program.returned import computed
from prism.program.stated import Fact
from prism.report.folder import (
    LARGEST,
    LOCK_NAME,
    REPORT_NAME,
    WEIGHTS_NAME,
    certificate_name,
    digest_of,
    read_file,
    unlisted,
)
from prism.report.records import MODEL_LOCK_SCHEMA, RANGES_LOCK_SCHEMA, from_json, lock_schema, recorded_files
from prism.sgraph import record as sgraph_file
from prism.sgraph.compose import steps_differ
from prism.sgraph.denote import expand, stored_at
from prism.sgraph.show import key, text

PROOF_NAME = "proof.json"

# Of the reference, when it is proved again; the verdict may only become `unknown` by a small one.
AGAIN = SearchBudget().saturation()
TOGETHER = 8
"""Outputs that are proved again in one e-graph."""
UNLISTED = "the lock file does not list it: prism did not write it there"
LEAST_S = 20.0
MORE_S = 20.0
"""Seconds of processor time that one part of a verification may take, and more for each megabyte that is read."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Something that is not as the folder says."""

    where: str  # the file, and the place in it
    what: str  # what is there, and what should be

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of checking a folder."""

    rung: str  # the kind of certificate, `derivation` or `replay`; empty where it could not be read
    passed: tuple[str, ...]  # what was found to be right, one clause each
    mismatches: tuple[Mismatch, ...]  # what was not

    def __bool__(self) -> bool:
        return not self.mismatches


def verify(
    out: str | os.PathLike[str],
    program: Program | None = None,
    *,
    rules: Sequence[Path | str] = (),
    worker: Worker | None = None,
) -> Verification:
    """Check an output folder again: its files, its certificate, the rules and the versions that it rests on.

    Args:
        out: the folder.
        program: the model that the folder should be of; when given, the proof must start from it.
        rules: rule files of your own that it was made with, beside those that ship with prism.
        worker: a running worker with these rules; one is started, and ended, by default.

    Raises:
        UsageError: it is no output folder of prism.
        RuleError: a rule file is not right, or one of its rules is wrong.
        VerificationError: its lock file cannot be read.
    """
    folder = Path(out)
    if not os.path.lexists(folder / LOCK_NAME):
        raise UsageError(
            "not an output folder of prism", where=str(out), why=f"it has no {LOCK_NAME}", fix="give prism optimize's"
        )
    lock_data = read_file(folder, LOCK_NAME)
    where = str(folder / LOCK_NAME)
    match _schema(lock_data, where):
        case schema if schema == MODEL_LOCK_SCHEMA:
            return _verified_parts(folder, lock_data, None, rules, worker)
        case schema if schema == RANGES_LOCK_SCHEMA:
            over = None if program is None else _over_its_ranges(folder, program)
            return _verified_parts(folder, lock_data, over, rules, worker)
    try:
        lock, recorded = from_json(lock_data, LockRecord, where=where), recorded_files(lock_data, where=where)
    except UsageError as error:
        raise VerificationError(error.what, where=where, why=error.why, fix="run prism optimize again") from error
    run = _Run(folder, lock, recorded, rule_paths(rules) or rule_files())
    run.step(run.files)
    run.step(run.versions)
    proof = run.step(run.proof, PROOF_NAME)
    if isinstance(proof, ProofRecord):
        certificate = certificate_name(proof.rung)
        run.step(lambda: run.rules(proof), PROOF_NAME)
        reader = run.step(lambda: run.certificate(proof), certificate)
        if isinstance(reader, _Sides):
            run.step(lambda: run.meaning(proof, reader), sgraph_file.NAME)
            run.step(lambda: run.again(reader, worker), certificate)
            if program is not None:
                run.step(lambda: run.model(program, proof, reader), certificate)
    rung = proof.rung if isinstance(proof, ProofRecord) else ""
    return Verification(rung, tuple(run.passed), tuple(run.mismatches))


def of_parts(out: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The folders of models in parts: an output folder itself, or those that one for ranges holds; none of others.

    As far as its lock file and its report say.
    """
    folder = Path(out)
    try:
        schema = lock_schema(read_file(folder, LOCK_NAME))
        if schema == MODEL_LOCK_SCHEMA:
            return (folder,)
        if schema != RANGES_LOCK_SCHEMA:
            return ()
        report = _of_ranges(folder)
    except PrismError:
        return ()
    return tuple(folder / name for name in dict.fromkeys(c.folder for c in report.cells if c.folder and report.parts))


def _schema(lock_data: bytes, where: str) -> str:
    """What kind of folder it is."""
    try:
        return lock_schema(lock_data, where=where)
    except UsageError as error:
        raise VerificationError(error.what, where=where, why=error.why, fix="run prism optimize again") from error


def _over_its_ranges(folder: Path, program: Program) -> Program:
    """The program at the lengths that the folder's kernels are for, as its report says."""
    ranges = _of_ranges(folder).ranges
    return over(program, from_one(ranges, ranges))


def _of_ranges(folder: Path) -> RangedReport:
    return from_json(read_file(folder, REPORT_NAME), RangedReport, where=str(folder / REPORT_NAME))


def _verified_parts(
    folder: Path, lock_data: bytes, program: Program | None, rules: Sequence[Path | str], worker: Worker | None
) -> Verification:
    """A folder of folders: its own files, and each of the others, of which all are of the program where it is given."""
    recorded = recorded_files(lock_data, where=str(folder / LOCK_NAME))
    passed: list[str] = []
    mismatches: list[Mismatch] = []
    rungs: dict[str, None] = {}
    for name, expected in recorded.items():
        inner, _, file = name.rpartition("/")
        if Path(inner).name != inner or (folder / inner).is_symlink():
            wrong = "it cannot be read: it is not in a folder of the folder itself"
        else:
            wrong = _how_other(folder / inner, file, expected)
        if wrong:
            mismatches.append(Mismatch(name, wrong))
        elif inner:
            inside = verify(folder / inner, program, rules=rules, worker=worker)
            passed += [f"{inner}: {said}" for said in inside.passed]
            mismatches += [Mismatch(f"{inner}/{m.where}", m.what) for m in inside.mismatches]
            rungs[inside.rung] = None
    mismatches += [Mismatch(name, UNLISTED) for name in unlisted(folder, recorded)]
    if not mismatches:
        passed.insert(0, f"{len(recorded)} files have the hashes that the lock file says")
    return Verification(", ".join(rungs), tuple(passed), tuple(mismatches))


def _how_other(folder: Path, name: str, expected: str) -> str:
    """How a file is not the one whose SHA-256 the lock file says; nothing where it is."""
    try:
        found = digest_of(folder, name)
    except VerificationError as error:
        return error.reason
    return f"its SHA-256 is {found[:16]}…, the lock file says {expected[:16]}…" if found != expected else ""


@dataclass(frozen=True, slots=True)
class _Sides:
    """What the certificate equates."""

    terms: Terms
    outputs: tuple[tuple[str, Term, Term], ...]  # name, reference and denotation


@dataclass(slots=True)
class _Run:
    """One verification."""

    folder: Path
    lock: LockRecord
    recorded: dict[str, str]
    rule_files: tuple[Path, ...]
    passed: list[str] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)

    def step(self, work: Callable[[], object], file: str = LOCK_NAME) -> object:
        """Do one part, which reads the file; an error of prism's own is a mismatch, and so is what breaks a reader."""
        try:
            with processor_limit(self.seconds):
                return work()
        except TimeoutError as error:
            self.differs(file, f"{error}, which no file of its size should: it is damaged")
        except CertificateError as error:
            self.differs(self._certificate_name, str(error))
        except (RecursionError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            # What is read here may have been made to break its reader.
            self.differs(file, f"it is damaged: {type(error).__name__} {' '.join(str(error).split())[:200]}")
        except PrismError as error:
            self.differs(error.where or str(self.folder), error.reason)
        return None

    _certificate_name: str = "certificate"

    @property
    def seconds(self) -> float:
        """Processor time that one part may take: what is large may take long, and what is small may not."""
        size = 0
        for name in (LOCK_NAME, PROOF_NAME, sgraph_file.NAME, *map(certificate_name, ("derivation", "replay"))):
            with suppress(OSError):
                size += (self.folder / name).lstat().st_size
        return LEAST_S + MORE_S * min(size, LARGEST) / 1e6

    def differs(self, where: str, what: str) -> None:
        """Note a mismatch."""
        self.mismatches.append(Mismatch(where, what))

    def files(self) -> None:
        """Every file of the folder is the one that was written."""
        others = {name: _how_other(self.folder, name, expected) for name, expected in self.recorded.items()}
        wrong = [Mismatch(name, how) for name, how in others.items() if how]
        wrong += [Mismatch(name, UNLISTED) for name in unlisted(self.folder, self.recorded)]
        self.mismatches += wrong
        if not wrong:
            self.passed.append(f"{len(self.recorded)} files have the hashes that the lock file says")

    def versions(self) -> None:
        """The packages are those that the choice was made with."""
        here = versions()
        wrong = {n: v for n, v in self.lock.versions.items() if here.get(n, "") != v}
        for name, version in wrong.items():
            self.differs(LOCK_NAME, f"{name} is {here.get(name) or 'missing'}, it was {version}")
        if not wrong:
            self.passed.append(f"versions of {', '.join(self.lock.versions)}")

    def proof(self) -> ProofRecord:
        """The proof record."""
        data = read_file(self.folder, PROOF_NAME)
        record = from_json(data, ProofRecord, where=PROOF_NAME)
        if record.status != "proved":
            self.differs(PROOF_NAME, f"the verdict is {record.status}")
        return record

    def rules(self, proof: ProofRecord) -> None:
        """The rule files are those of the proof."""
        here = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in self.rule_files}
        wrong = [n for n, h in proof.rule_hashes.items() if here.get(n) != h]
        for name in wrong:
            found = f"its SHA-256 is {here[name][:16]}…" if name in here else "it is missing"
            self.differs(f"rules/{name}", f"{found}, the proof used {proof.rule_hashes[name][:16]}…")
        if not wrong:
            self.passed.append(f"{len(proof.rule_hashes)} rule files are those of the proof")

    def certificate(self, proof: ProofRecord) -> _Sides:
        """The certificate: a derivation is checked step by step, a replay is read."""
        name = self._certificate_name = certificate_name(proof.rung)
        if name not in self.recorded:
            raise VerificationError("there is no certificate", where=name, why=f"the proof is on rung {proof.rung}")
        data = read_file(self.folder, name)
        if proof.rung != "derivation":
            sides = _sides(data)
        else:
            accepted = check(data, _texts(self.rule_files))
            steps = sum(len(s) for _, _, s, _ in accepted.outputs)
            self.passed.append(f"the derivation's {steps} steps")
            sides = _Sides(accepted.terms, tuple((n, a, b) for n, a, _, b in accepted.outputs))
        said = read_assumptions(proof.stated)
        for tensor, facts in sides.terms.stated.items():
            if tensor not in said or not set(facts) <= set(said[tensor].facts):
                self.differs(
                    name,
                    f"it takes {tensor} to be {' and '.join(map(_said, facts))}, which {PROOF_NAME} does not state",
                )
        if said:
            self.passed.append(f"for inputs of which {' and '.join(f'{n} {s}' for n, s in said.items())}")
        return sides

    def meaning(self, proof: ProofRecord, sides: _Sides) -> None:
        """The sGraph computes what the proof ends with."""
        if sgraph_file.NAME not in self.recorded:
            raise VerificationError("it is missing", where=sgraph_file.NAME, why="there is nothing that was proved")
        try:
            sgraph = sgraph_file.read(read_file(self.folder, sgraph_file.NAME))
        except IllegalIRError as error:
            raise VerificationError(error.what, where=sgraph_file.NAME, why=error.why or error.where) from error
        if key(sgraph) != self.lock.sgraph:
            self.differs(sgraph_file.NAME, "its key is not that of the lock file")
        if text(sgraph) != proof.sgraph:
            self.differs(sgraph_file.NAME, f"it is not the sGraph of {PROOF_NAME}")
        encoder = Encoder(sides.terms)
        found = sgraph_file.denoted(sgraph, [name for name, _, _ in sides.outputs])
        for (name, _, end), expr in zip(sides.outputs, found, strict=True):
            if encoder.of(expr) is not end:
                self.differs(sgraph_file.NAME, f"it does not compute what the proof of output {name} ends with")
                return
        self.passed.append("the sGraph computes what the proof ends with")

    def again(self, sides: _Sides, worker: Worker | None) -> None:
        """The prover says so again."""
        decoder = Decoder(sides.terms)
        # Regions of a model were proved one by one; many in one e-graph would have no room.
        pairs = [(decoder.of(a), decoder.of(b)) for _, a, b in sides.outputs]
        stated = sides.terms.stated
        parts = [(pairs, stated)]
        if len(pairs) > TOGETHER:
            apart = dict.fromkeys(_nameless(a, b, stated) for a, b in pairs)
            parts = [([(a, b)], dict(given)) for a, b, given in apart]
        with nullcontext(worker) if worker is not None else Worker(self.rule_files) as running:
            for part, given in parts:
                running.refer([a for a, _ in part], AGAIN, given)
                verdict = running.prove([[b for _, b in part]])[0]
                if not verdict:
                    break
        if verdict:
            self.passed.append(f"proved again: {verdict.reason}")
        else:
            self.differs(self._certificate_name, f"proved again, the verdict is {verdict.status}: {verdict.reason}")

    def model(self, program: Program, proof: ProofRecord, sides: _Sides) -> None:
        """The proof is of this model, under what is stated of its inputs."""
        program, _ = computed(under(program, proof.stated))
        program = fold_constants(program)
        if program_hash(_tuned_at(program, self.lock.shapes)) != self.lock.program:
            self.differs(LOCK_NAME, f"it is not of the model {program.name}: the program's hash is another one")
            return
        # The proof is for all values of weights; the module computes with those of its file.
        weights = weights_file(program)
        if weights is not None and weights.sha256() != self.recorded.get(WEIGHTS_NAME):
            self.differs(WEIGHTS_NAME, "the model's weights have other values: run prism optimize on this model")
            return
        self.passed += ["the weights are the model's"] * (weights is not None)
        if program.loops:
            wrong = steps_differ(sgraph_file.read(read_file(self.folder, sgraph_file.NAME)).repeats, program.loops)
            if wrong:
                self.differs(sgraph_file.NAME, wrong)
                return
            self.passed.append("the steps are given what the model's loops say")
        if list(program.outputs) != [name for name, _, _ in sides.outputs] or program.loops:
            # Regions are proved one by one, over the tensors between them; written out, the whole may be too deep.
            self.passed.append("the model is the one of the lock file")
            return
        formulas, _ = formulas_of(program)
        encoder = Encoder(sides.terms)
        places = stored_at(sgraph_file.read(read_file(self.folder, sgraph_file.NAME)))
        for f, (name, reference, _) in zip(formulas, sides.outputs, strict=True):
            if places[name] != f.index:
                self.differs(
                    sgraph_file.NAME, f"output {name}: its elements are stored in other places than the model's"
                )
                return
            split = _extents(f.expr, proof.split)
            if encoder.of(expand(f.expr, split)) is not reference:
                self.differs(self._certificate_name, f"output {name}: the proof starts from another formula")
                return
        self.passed.append("the proof starts from the model's formulas")


def _extents(expr: Expr, wanted: Sequence[str]) -> list[Extent]:
    """The extents of bound axes that are called so, in the order of `wanted`."""
    known = {str(e.axis.extent): e.axis.extent for e in walk(expr) if isinstance(e, Reduce)}
    return [known[w] for w in wanted if w in known]


def _said(fact: Fact) -> str:
    """A fact of a tensor, in words."""
    return fact if isinstance(fact, str) else f"{'>=' if fact[0] == 'lower' else '<='} {fact[1]:g}"


def _nameless(a: Expr, b: Expr, stated: TensorFacts) -> tuple[Expr, Expr, tuple[tuple[str, tuple[Fact, ...]], ...]]:
    """The two, and what is stated for them, what they read called by its place: equal for regions but for names."""
    names = {t: f"t{n}" for n, t in enumerate(dict.fromkeys((*reads(a), *reads(b))))}
    return (
        over_names(a, names),
        over_names(b, names),
        tuple((names[t], tuple(f)) for t, f in stated.items() if t in names),
    )


def _texts(files: Sequence[Path]) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in files}


def _sides(data: bytes) -> _Sides:
    """What a certificate without steps asks to prove."""
    try:
        body: Any = msgspec.json.decode(data)
        if body["schema"] != REPLAY_SCHEMA or body["sha256"] != digest(body):
            raise CertificateError("it was altered, or is no certificate")
        reader = Reader(Terms(dict(body["axes"]), stated_in(body)), {})
        reader.read_table(body["terms"])
        pairs = [(o["name"], reader.table[o["reference"]], reader.table[o["denotation"]]) for o in body["outputs"]]
    except (msgspec.DecodeError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise CertificateError(f"it is damaged: {error}") from error
    return _Sides(reader.terms, tuple(pairs))


# --- explanations --------------------------------------------------------------------------------------------------


def explain(out: str | os.PathLike[str], *, rules: Sequence[Path | str] = ()) -> list[str]:
    """The derivation of an output folder as mathematics, line by line, after what it assumes; it is checked first.

    Args:
        out: the folder.
        rules: rule files of your own that it was made with, beside those that ship with prism.

    Raises:
        UsageError: it is no output folder of prism, or it has no derivation.
        VerificationError: the derivation is not right.
    """
    folder = Path(out)
    if not os.path.lexists(folder / PROOF_NAME) and os.path.lexists(folder / LOCK_NAME):
        inner = sorted(p.parent for p in folder.rglob(PROOF_NAME))
        if inner:
            raise UsageError(
                "kernels of several folders have a derivation each",
                where=str(out),
                fix=f"give one of them, as {inner[0]}",
            )
    if not os.path.lexists(folder / PROOF_NAME):
        raise UsageError("not an output folder of prism", where=str(out), why=f"it has no {PROOF_NAME}")
    proof = from_json(read_file(folder, PROOF_NAME), ProofRecord, where=str(folder / PROOF_NAME))
    files = rule_paths(rules) or rule_files()
    name = certificate_name(proof.rung)
    if proof.rung != "derivation":
        raise UsageError(
            "there is no derivation", where=str(folder), why=proof.why_not_derived or "none was looked for"
        )
    try:
        accepted = check(read_file(folder, name), _texts(files))
    except CertificateError as error:
        raise VerificationError(
            "the derivation is not right", where=str(folder / name), why=str(error), fix="run prism optimize again"
        ) from error
    assumed = [f"assuming {clause}" for clause in proof.assumptions]
    return [*assumed, *explanation(accepted, load_rules(files))]


def explanation(accepted: Checked, rules: RuleSet) -> Iterator[str]:
    """A derivation that was accepted, as mathematics.

    What only rearranges sums and products, or computes a constant, is summed up in one line.
    """
    texts = {r.name: r for r in rules.rules}
    read: dict[str, Rule] = {}
    for r in rules.rules:
        read |= read_rules(r.text, r.file)
    plain = {name for name, rule in read.items() if _rearranges(rule)}
    printer = _Printer(Decoder(accepted.terms, {constructor(op.name): op.name for op in rules.operators}))
    for name, reference, steps, denotation in accepted.outputs:
        yield f"{name}: {len(steps)} steps from the model's formula to what the kernels compute"
        yield from printer.lines(name, reference, denotation)
        n = 0
        while n < len(steps):
            end = n
            while end < len(steps) and (steps[end].kind != "rule" or steps[end].rule in plain):
                end += 1
            if end > n:
                used = ", ".join(dict.fromkeys(s.rule or s.kind for s in steps[n:end]))
                yield f"  {_numbers(n, end)}  rearranged: {used}"
                n = end
            else:
                step = steps[n]
                rule = texts[step.rule]
                way = "" if step.forward else ", read from right to left"
                yield f"  {_numbers(n, n + 1)}  {step.rule} ({rule.fp_class.value}): {rule.formula}{way}"
                yield from printer.change(step)
                n += 1
            if n == len(steps) or end == n:
                yield from printer.lines(name, steps[n - 1].whole, denotation)


def _numbers(start: int, end: int) -> str:
    return f"{start + 1}" if end == start + 1 else f"{start + 1}-{end}"


def _rearranges(rule: Rule) -> bool:
    """Whether a rule only permutes operands: its sides are made of the same symbols, and it asks for nothing."""
    symbols = [sorted(re.findall(r"[^\s\[\]',]+", str(side))) for side in (rule.left, rule.right)]
    return symbols[0] == symbols[1] and not rule.facts


@dataclass(slots=True)
class _Printer:
    """Prints terms as formulas."""

    decoder: Decoder

    def lines(self, name: str, term: Term, like: Term) -> Iterator[str]:
        """The whole formula, indented; its free axes are those of `like`, too."""
        axes = sorted(term.axes | like.axes)
        index = tuple(Index.axis(Axis(a, 0)) for a in axes)
        for n, line in enumerate(formula_lines(Formula(Tensor(name, (), DType.FLOAT32), index, self.decoder.of(term)))):
            yield ("      " if n == 0 else "    ") + line

    def change(self, step: Step) -> Iterator[str]:
        """What a step replaced by what."""
        for sign, term in (("-", step.before), ("+", step.after)):
            formula = Formula(Tensor("", (), DType.FLOAT32), (), self.decoder.of(term))
            for line in formula_lines(formula):
                yield f"      {sign} {line.removeprefix(' = ')}"


def _tuned_at(program: Program, shapes: Mapping[str, int]) -> Program:
    """The program with the shapes that the kernels were tuned at, which `--shape` may have set."""
    ranges = {name: replace(r, hint=shapes.get(name, r.hint)) for name, r in program.ranges.items()}
    return program.over(ranges)
