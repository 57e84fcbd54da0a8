"""The child's side of the worker: one pickled (method, arguments) a request, one pickled (ok, result) an answer.

While nobody asks, e-graphs with the rules in them are made ahead of their use.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from prism.process.serve import private_output

# A request that follows closely on an answer is not kept waiting by an e-graph in the making.
IDLE_S = 0.02


def main(files: Sequence[str], fp: str = "domain") -> None:
    """Answer requests from standard input until it closes.

    Rules may be of the floating-point class `fp`, or of less.
    """
    _without_its_language()
    from prism.egraph.derivation.derive import Deriver

    requests, answers = Connection(os.dup(0), writable=False), Connection(private_output(), readable=False)
    engine, broken = _engine(files, fp)
    deriver = Deriver([Path(f) for f in files], fp)
    if not requests.poll(IDLE_S):
        # Whoever reads a model meanwhile may ask about lengths that are symbols; other extents need no sympy.
        import_module("sympy")
    while True:
        try:
            while engine is not None and not requests.poll(IDLE_S) and engine.prepare():
                pass
            method, args = requests.recv()
        except (EOFError, OSError):
            return
        try:
            if broken is not None:
                raise broken
            answer = True, _methods(engine, deriver)[method](*args)
        except (KeyboardInterrupt, SystemExit):
            return
        except BaseException as error:  # egglog's panics are no Exceptions
            answer = False, _sendable(error)
        try:
            answers.send(answer)
        except (BrokenPipeError, OSError):
            return


def _without_its_language() -> None:
    """Leave out egglog's own language in Python: prism speaks to the bindings, and the rest takes 0.3 s to import.

    For a process of prism's own: who imports egglog here finds nothing else in it.
    """
    found = PathFinder.find_spec("egglog")
    if found is None or "egglog" in sys.modules:
        return  # whoever imports it says that it is missing
    package = module_from_spec(found)
    sys.modules["egglog"] = package
    package.bindings = import_module("egglog.bindings")  # type: ignore[attr-defined]


def _engine(files: Sequence[str], fp: str) -> tuple[Any, BaseException | None]:
    from prism.egraph.engine import Engine
    from prism.egraph.rules import FpClass, read_rule_files
    from prism.errors import PrismError

    try:
        engine = Engine(read_rule_files([Path(f) for f in files]).allowed(FpClass(fp)))
        engine.prepare()  # which type-checks the rules; others are made while nobody asks
    except PrismError as error:
        return None, error
    return engine, None


def _methods(engine: Any, deriver: Any) -> dict[str, Callable[..., Any]]:
    return {
        "ready": lambda: None,
        "explore": engine.explore,
        "refer": engine.refer,
        "prove": engine.prove,
        "derive": deriver.derive,
    }


def _sendable(error: BaseException) -> BaseException:
    from prism.errors import PrismError, TooDeepError, WorkerError

    if isinstance(error, PrismError):
        return error
    if isinstance(error, RecursionError):
        return TooDeepError("an expression is nested too deeply", fix="split the program at a materialised tensor")
    text = str(getattr(error, "context", "") or error)[:300]
    return WorkerError("egglog failed", why=f"{type(error).__name__}: {text}")
