"""A made-up run for the tests of reports, folders and the command line."""

from __future__ import annotations

from dataclasses import replace

from prism.contents import Content
from prism.events import (
    Artifacts,
    CheckSummary,
    Evidence,
    Funnel,
    KernelReport,
    LockRecord,
    ProofRecord,
    RunReport,
)

VERSIONS = {"prism": "0.1.0", "triton": "3.9.0"}


def report(evidence: Evidence = Evidence.ESTIMATED, **changes: object) -> RunReport:
    """A run with two kernels."""
    made = RunReport(
        name="sample",
        formulas={"y": "sum_k[(x[m, k]*w[k, n])]"},
        target="sm_90",
        device="H200 model",
        evidence=evidence,
        baseline_seconds=37e-6,
        best_seconds=20e-6,
        operator_count=7,
        kernel_count=2,
        funnel=Funnel(
            generated=4321,
            pruned={"shared memory": 4000, "lower bound": 300},
            proved=19,
            unknown=2,
            timed_or_estimated=17,
        ),
        stages={"load": 0.01, "saturation": 0.25, "proof": 0.1},
        enodes=8452,
        peak_mb=312.4,
        kernels=(
            KernelReport("k0", "m:grid(T_m) k:loop(T_k)", "T_m=64 T_k=32 warps=4", 49152, 96, 0, 15e-6, "memory"),
            KernelReport("k1", "m:grid(T_m)", "T_m=64 warps=2", 0, 0, 16, 5e-6),
        ),
        sgraph_text="sgraph sample\n  kernel k0",
        sgraph_dot="digraph { a -> b }",
        verdict="proved",
        reason="merged after 5 iterations",
        rules=("linear", "exp"),
        check=CheckSummary("Triton's interpreter", 12, {"ordinary": 0.1, "large": 0.73}),
        config={"T_m": 64, "T_k": 32},
        seed=0,
        versions=VERSIONS,
        shapes={"seq": 1024},
        warnings=("the model has an unused input",),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def artifacts(made: RunReport | None = None, weights: Content | None = None) -> Artifacts:
    """All that a folder is made from."""
    proof = ProofRecord(
        status="proved",
        reason="merged after 5 iterations",
        rules=("linear", "exp"),
        rule_hashes={"linear.egg": "ab" * 32},
        egglog="13.2.0",
        enodes=8452,
        iterations=5,
        program="program sample",
        sgraph="sgraph sample",
        denotation="y[m, n] = sum_k[x*w]",
    )
    lock = LockRecord(
        program="cd" * 32,
        sgraph="ef" * 32,
        target="sm_90",
        device="H200 model",
        evidence=Evidence.ESTIMATED,
        config={"T_m": 64, "T_k": 32},
        shapes={"seq": 1024},
        seed=0,
        trials=12,
        budget={"enodes": 20000},
        versions=VERSIONS,
    )
    module = "def sample(x, w):\n    return x @ w\n"
    return Artifacts(made or report(), module, proof, lock, "program sample\n  input x[m, k]", weights)
