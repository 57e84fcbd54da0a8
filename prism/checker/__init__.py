"""Checks derivations, alone: it imports neither egglog nor anything of the prover, only the standard library.

    terms.py         terms, and what can be told of them
    rules.py         rules, read from the text of their files, and their instances
    operators.py     operators that a rule file declares, as rules
    certificates.py  reading a certificate and following its steps

A certificate is JSON, schema `prism.derivation/1`:

    rules     rule file to the SHA-256 of its bytes, for the files whose rules are cited
    axes      name of an axis to its extent
    stated    where something is: tensor to what is taken for granted of its elements, of positive, nonneg, nonzero and
              boolean: the proof is for such tensors alone
    terms     a table, children before parents: [op, child, ...]; [op, axis, child] for Sum, Max, Min and Prod;
              ["Read", tensor, [index, ...]], ["Pos", index], ["Const", number], ["Size", extent], where an index is
              [[[axis, coefficient], ...], offset]; nothing twice, nothing unused
    outputs   for each output: name, `reference` and `denotation` (rows of the table), and the steps that lead from the
              one to the other; every step replaces what stands at its positions (equal terms, paths of child numbers)
    sha256    of all of the above, against accidents

A step is one of

    rule      an instance of a named rule of a rule file, `forward` or `backward`, under the substitution that it gives:
              a row for each variable of the rule that is not defined by others, an axis' name for each axis variable
    rename    the same term up to the names of bound axes; `to` is its row
    constant  two terms without axes and reads that come to the same number; an output's steps of this kind together may
              change it by 2^-36, since the prover keeps 40 bits of a constant

What a rule asks of its variables (free axes, finite, positive, ...) is worked out here, from the term alone; the rules
that derive such facts for the prover are not used. The rules themselves are read from their files' text.
"""

from prism.checker.certificates import SCHEMA, Checked, Reader, Step, check, digest, stated_in
from prism.checker.rules import GuardError, Rule, Sexp, instance, read_rules
from prism.checker.terms import LEAVES, REDUCTIONS, CertificateError, Index, Term, Terms, rename_data

__all__ = [
    "LEAVES",
    "REDUCTIONS",
    "SCHEMA",
    "CertificateError",
    "Checked",
    "GuardError",
    "Index",
    "Reader",
    "Rule",
    "Sexp",
    "Step",
    "Term",
    "Terms",
    "check",
    "digest",
    "instance",
    "read_rules",
    "rename_data",
    "stated_in",
]
