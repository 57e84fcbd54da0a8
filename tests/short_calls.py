"""What tests ask of prism in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prism.egraph.prove.programs import examine_programs
from prism.instantiate.gate.plan import InterpreterCosts
from prism.instantiate.options import OPTIONS, Option
from prism.program.nodes import Program
from prism.program.verdict import Verdict
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph


def prove_programs(a: Program, b: Program, **options: Any) -> Verdict:
    return examine_programs(a, b, **options).verdict


def cost_s(sgraph: SGraph, config: Config, binding: Mapping[str, int], *, sampled: bool = False) -> float:
    """What the interpreter takes for all launches, seconds, roughly."""
    return InterpreterCosts(sgraph, config, binding, config.symbols, sampled=sampled).total


def config_of(values: Mapping[str, int], options: Sequence[type[Option]] = OPTIONS) -> Config:
    """The configuration that `Config.flat` wrote."""
    numbered = {"warps": True, "stages": True, **{o.name: o.numbered for o in options}}
    found: dict[str, Any] = {"symbols": {}}
    for name, value in values.items():
        option, dot, launch = name.partition(".")
        if not dot:
            found["symbols"][name] = value
        elif numbered[option]:
            found.setdefault(option, {})[launch] = value
        else:
            found.setdefault(option, []).append(launch)
    return Config.decode(found)
