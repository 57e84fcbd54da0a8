"""`prism rules`: list, check, profile and test rule files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from prism.cli.models import Model
from prism.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prism.egraph.rules import Rule
    from prism.egraph.soundness.check import Finding

_Draws = Annotated[int, Parameter(validator=Number(gte=1))]
_Seed = Annotated[int, Parameter(validator=Number(gte=0))]
_Files = Annotated[tuple[Path, ...], Parameter(negative=())]


def rules_app() -> App:
    """The commands below `prism rules`."""
    app = App(name="rules", help="List, check, profile and test the rules that proofs are made of; see docs/rules.md.")
    app.command(list_rules, name="list")
    app.command(check)
    app.command(profile)
    app.command(try_rules, name="test")
    return app


def list_rules(*, rules: _Files = ()) -> int:
    """Print every rule: name, family, ruleset, floating-point class, and what it says in mathematics.

    Args:
        rules: a rule file of your own; give it again for others.
    """
    from prism.cli.output import write_line
    from prism.egraph.rules import load_rules, rule_files

    found = load_rules((*rule_files(), *own_rules(rules))).rules
    rows = [(r.name, Path(r.file).stem, r.ruleset, r.fp_class.value, r.formula) for r in found]
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    lines = ["  ".join([*(text.ljust(w) for text, w in zip(row, widths, strict=False)), row[4]]) for row in rows]
    write_line("\n".join([*lines, f"{len(rows)} rules"]))
    return ExitCode.DONE


def check(*files: Path, draws: _Draws = 2000, seed: _Seed = 0) -> int:
    """Check rule files: syntax, types, guards that seem to be missing, growth, and then truth, by random draws.

    Exit 0 when nothing is wrong (warnings and remarks may be printed), 5 when something is.

    Args:
        files: the rule files; their rules may use no name of a rule that ships with prism.
        draws: random interpretations of each rule that satisfy its facts.
        seed: of the draws.
    """
    from prism.cli.output import write_line
    from prism.egraph.lint import Severity, lint
    from prism.egraph.rules import load_rules, rule_files

    if not files:
        raise UsageError("there is nothing to check", where="prism rules check", fix="name a rule file")
    shipped = rule_files()
    ours = {p.resolve() for p in shipped}
    known = None if any(f.resolve() in ours for f in files) else load_rules(shipped)
    rules, issues = lint(files, known)
    for issue in issues:
        write_line(str(issue))
    wrong = _tested(rules, draws, seed)
    errors = sum(i.severity is Severity.ERROR for i in issues)
    write_line(
        f"{len(rules)} rules, {errors} errors, {len(issues) - errors} warnings, {wrong} wrong "
        f"by random interpretation ({_drawn(draws)})"
    )
    return ExitCode.VERIFICATION_FAILED if errors or wrong else ExitCode.DONE


def try_rules(*files: Path, draws: _Draws = 2000, seed: _Seed = 0) -> int:
    """Test the rules that ship with prism, and those of the given files, by random interpretation: exit 0 or 5.

    Args:
        files: rule files of your own.
        draws: random interpretations of each rule that satisfy its facts.
        seed: of the draws.
    """
    from prism.cli.output import write_line
    from prism.egraph.rules import load_rules, rule_files

    rules = load_rules((*rule_files(), *own_rules(files))).rules
    wrong = _tested(rules, draws, seed)
    write_line(f"{len(rules)} rules, {wrong} wrong by random interpretation ({_drawn(draws)})")
    return ExitCode.VERIFICATION_FAILED if wrong else ExitCode.DONE


def profile(
    model: Model, /, *, rules: _Files = (), top: Annotated[int, Parameter(validator=Number(gte=1))] = 20
) -> int:
    """Say which rule costs what on an ONNX model, in the saturation that the search starts from.

    Args:
        model: the ONNX file.
        rules: a rule file of your own; give it again for others.
        top: how many rules are shown, the dearest in e-nodes first.
    """
    import prism.api as api
    from prism.cli.output import write_line
    from prism.egraph.profile import profile as measure
    from prism.egraph.rules import load_rules, rule_files
    from prism.program.inline import inline

    own = own_rules(rules)
    loaded = load_rules((*rule_files(), *own))
    found = measure(loaded, [f.expr for f in inline(api.load(model, rules=own, check=False))])
    width = max((len(c.rule) for c in found.costs), default=4)
    lines = [f"{'rule'.ljust(width)}  {'ruleset':<8}  {'matches':>8}  {'e-nodes':>8}  {'ms':>8}"]
    lines += [
        f"{c.rule.ljust(width)}  {c.ruleset:<8}  {c.matches:>8,}  {c.enodes:>+8,}  {c.seconds * 1e3:>8.2f}"
        for c in found.costs[:top]
    ]
    more = len(found.costs) - top
    lines.append(
        f"{found.enodes:,} e-nodes after {found.iterations} rounds ({found.stopped}); "
        + (f"{more} more rules met something, " if more > 0 else "")
        + f"{len(found.idle)} met nothing"
    )
    write_line("\n".join(lines))
    return ExitCode.DONE


def own_rules(given: tuple[Path, ...]) -> tuple[Path, ...]:
    """The rule files of the command line, and those of the current folder's pyproject.toml, each once."""
    found: dict[Path, Path] = {}
    for path in (*configured_rules(), *given):
        found.setdefault(path.resolve(), path)
    return tuple(found.values())


def configured_rules() -> tuple[Path, ...]:
    """The files that `[tool.prism] rules = [...]` names in the pyproject.toml of the current folder.

    The command heeds it; the Python API takes rules from its arguments alone.

    Raises:
        UsageError: the file is not TOML, or `rules` is no list of names.
    """
    path = Path("pyproject.toml")
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    try:
        tool = tomllib.loads(text).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        raise UsageError("pyproject.toml cannot be read", where=str(path), why=str(error)) from error
    mine = tool.get("prism", {}) if isinstance(tool, dict) else {}
    names = mine.get("rules", []) if isinstance(mine, dict) else []
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise UsageError("rules is no list of file names", where=f"{path}: [tool.prism]", fix='rules = ["my.egg"]')
    return tuple(Path(n) for n in names)


def _tested(rules: Iterable[Rule], draws: int, seed: int) -> int:
    """Test the rules, print what is wrong, and count it."""
    from prism.cli.output import write_line
    from prism.egraph.soundness.check import check_rule
    from prism.egraph.soundness.shrink import available

    wrong = 0
    for rule in rules:
        if rule.definition:
            continue
        finding = check_rule(rule, seed, draws)
        wrong += not finding
        text = _said(finding)
        if text:
            write_line(f"{rule.file}:{rule.line}:1: {text}")
    if wrong and not available():
        write_line("counterexamples were shrunk greedily: hypothesis is not installed (pip install hypothesis)")
    return wrong


def _drawn(draws: int) -> str:
    from prism.egraph.soundness.check import exact_draws

    return f"{draws:,} draws each; {exact_draws(draws):,} exact ones where rational"


def _said(finding: Finding) -> str:
    """What there is to say of a rule; nothing when all is well."""
    if finding.counterexample:
        return f"error: rule {finding.rule!r} is wrong: {finding.counterexample}"
    if not finding.agreed:
        return f"error: rule {finding.rule!r} was not tested: no draw satisfies its facts"
    if finding.remark:
        return f"remark: rule {finding.rule!r}: {finding.remark}"
    return ""
