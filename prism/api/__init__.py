"""The Python API: load or trace a program, prove, search, optimize.

loading.py     model file or torch function -> Program
searching.py   Program -> proved sGraphs         (regions, often one: region_search.py, partitioned.py)
region_search.py one region -> proved sGraphs    (saturate, generate, prove; proofs.py, trivial.py)
partitioned.py several regions, searched apart and composed
optimizing.py  Program -> output folder          (composing.py: regions; choosing.py: one of them, from finalists.py)
ranged.py      a program, ranges of lengths -> output folder with kernels for each part of them
whole_models.py an ONNX model in parts -> output folder (model_inputs.py: what it is compared and timed on)
whole_ranges.py the same over ranges of lengths
given_inputs.py inputs of the user's own, to be checked on
records.py     a finished run -> report, proof record, lock
rules.py       rule files of the user's own; the operators that they declare, as torch functions
proving.py     two functions or two models -> Verdict
verifying.py   an output folder -> is it what it says; its derivation, to read
"""

from prism.api.given_inputs import read_inputs
from prism.api.loading import load, trace
from prism.api.optimizing import OptimizeResult, optimize
from prism.api.proofs import ProvedSGraph
from prism.api.proving import prove, prove_models
from prism.api.ranged import RangedResult, optimize_ranges
from prism.api.region_search import Search, SearchBudget, SearchInterruptedError, SearchResult
from prism.api.results import load_compared
from prism.api.searching import search
from prism.api.user_rules import operators
from prism.api.verifying import explain, verify
from prism.api.whole_models import (
    ModelResult,
    better_in_parts,
    left_for_types,
    may_go_in_parts,
    optimize_model,
    shown_in_parts,
)
from prism.api.whole_ranges import ModelRanges, optimize_model_ranges

__all__ = [
    "ModelRanges",
    "ModelResult",
    "OptimizeResult",
    "ProvedSGraph",
    "RangedResult",
    "Search",
    "SearchBudget",
    "SearchInterruptedError",
    "SearchResult",
    "better_in_parts",
    "explain",
    "left_for_types",
    "load",
    "load_compared",
    "may_go_in_parts",
    "operators",
    "optimize",
    "optimize_model",
    "optimize_model_ranges",
    "optimize_ranges",
    "prove",
    "prove_models",
    "read_inputs",
    "search",
    "shown_in_parts",
    "trace",
    "verify",
]
