"""The saturation worker: egglog in a process of its own, which can be killed.

egglog cannot be interrupted, so every request has a hard limit in seconds, past which the child is killed and the next
request starts a fresh one. The child is started before it is asked and loads egglog and the rules meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from prism.egraph.derivation.certificate import Derivation
from prism.egraph.language import NO_FACTS, Budget, TensorFacts
from prism.errors import PrismError, TooDeepError, WorkerError
from prism.process.child import START_LIMIT_S, Child, Closing
from prism.program.classes import EClasses
from prism.program.nodes import Expr
from prism.program.verdict import Verdict

_CHILD = "import sys; sys.path[:] = {path!r}; from prism.egraph.serve import main; main({files!r}, {fp!r})"

PROVE_LIMIT_S = 30.0
"""Hard limit on one `prove`, for each candidate."""


class Worker(Closing):
    """A process that saturates a reference and proves candidates against it. Not for several threads at once.

    Args:
        rules: rule files; those that ship with prism by default.
        fp: only rules of this floating-point class, and those that change less, are used: exact, reassociates, domain.
        at_once: whether the child is started now; otherwise by `begin`, or by the first request.
    """

    def __init__(self, rules: Sequence[Path] | None = None, *, fp: str = "domain", at_once: bool = True) -> None:
        from prism.egraph.rules import rule_files

        self._rules = rules
        files = [str(p) for p in (rules if rules is not None else rule_files())]
        self._child = Child([sys.executable, "-c", _CHILD.format(path=sys.path, files=files, fp=fp)])
        # Copies of the child's pipes, which speak pickles.
        self._requests: Connection[Any, Any] | None = None
        self._answers: Connection[Any, Any] | None = None
        self._fresh = True
        # What the child holds, as the request that made it so.
        self._reference: tuple[str, tuple[object, ...], float] | None = None
        # The limit in seconds of the request that is not collected yet.
        self._pending: float | None = None
        if at_once:
            self._start()

    def begin(self) -> None:
        """Start the child, where there is none: it will be asked something."""
        if not self._alive():
            self._start()

    @property
    def rules(self) -> Sequence[Path] | None:
        """The rule files; None for those that ship with prism."""
        return self._rules

    @property
    def pid(self) -> int | None:
        """The child's process id, when one is alive."""
        return self._child.pid

    def ready(self) -> None:
        """Wait until egglog and the rules are loaded.

        Raises:
            WorkerError: the worker died.
            RuleError: a rule file is not right.
        """
        self._ask("ready", (), START_LIMIT_S)

    def explore(
        self, reference: Sequence[Expr], budget: Budget, facts: TensorFacts = NO_FACTS, beside: bool = False
    ) -> EClasses:
        """Saturate the expressions, which stay in the worker as the reference of `prove`.

        The worker keeps the last few references (engine.KEPT): to come back to one costs next to nothing. The reference
        has canonical axes, an expression an output; `facts` are what is known of the elements of tensors. What comes
        `beside` others, to which one comes back, does not have these make room for it first.

        Raises:
            WorkerError: the worker died or ran past `budget.seconds`.
            RuleError: a rule file is not right.
        """
        classes: EClasses = self._hold("explore", (tuple(reference), budget, dict(facts), beside), budget.seconds)
        return classes

    def refer(self, reference: Sequence[Expr], budget: Budget, facts: TensorFacts = NO_FACTS) -> None:
        """As `explore`, for proofs alone: nothing is handed over.

        Raises:
            WorkerError: the worker died or ran past `budget.seconds`.
        """
        self._hold("refer", (tuple(reference), budget, dict(facts)), budget.seconds)

    def _hold(self, method: str, args: tuple[object, ...], seconds: float) -> Any:
        self._reference = None
        answer = self._ask(method, args, seconds)
        self._reference = method, args, seconds
        return answer

    def prove(self, candidates: Sequence[Sequence[Expr]]) -> list[Verdict]:
        """For each candidate (one expression per output of the reference): proved or unknown.

        Raises:
            WorkerError: the worker died or ran past its limit, or nothing was explored.
        """
        self.submit(candidates)
        return self.collect()

    def submit(self, candidates: Sequence[Sequence[Expr]]) -> None:
        """Ask as `prove` does and go on; `collect` gives the answer, unless something else is asked before.

        Raises:
            WorkerError: the worker died.
        """
        if (self._fresh or not self._alive()) and self._reference is not None:
            # The process that held the reference is gone.
            self._hold(*self._reference)
        self._send("prove", ([tuple(c) for c in candidates],), PROVE_LIMIT_S * max(1, len(candidates)))

    def answered(self) -> bool:
        """Whether `collect` has not to wait for the answer to `submit`."""
        return self._answers is None or self._answers.poll()

    def collect(self) -> list[Verdict]:
        """The answer to `submit`.

        Raises:
            WorkerError: nothing was submitted, the worker died or ran past its limit, or nothing was explored.
        """
        verdicts: list[Verdict] = self._receive("prove")
        return verdicts

    def derive(
        self,
        names: Sequence[str],
        reference: Sequence[Expr],
        denotation: Sequence[Expr],
        facts: TensorFacts = NO_FACTS,
    ) -> Derivation:
        """A derivation from the reference to the denotation, output by output; see `prism.egraph.derivation.derive`.

        Raises:
            WorkerError: the worker died or ran past its limit.
        """
        args = (tuple(names), tuple(reference), tuple(denotation), dict(facts))
        found: Derivation = self._ask("derive", args, PROVE_LIMIT_S * max(1, len(names)))
        return found

    def close(self) -> None:
        """End the process."""
        if self._pending is not None:
            self._kill()
        self._disconnect()
        self._child.close()

    def _alive(self) -> bool:
        """Whether there is a child that waits for a request; one whose answer nobody collected does not."""
        return self._child.alive and self._pending is None

    def _ask(self, method: str, args: tuple[object, ...], seconds: float) -> Any:
        self._send(method, args, seconds)
        return self._receive(method)

    def _send(self, method: str, args: tuple[object, ...], seconds: float) -> None:
        if self._child.closed:
            raise WorkerError("the e-graph worker is closed")
        if not self._alive():
            self._kill()
            self._start()
        requests = self._requests
        assert requests is not None
        with self._failures(method):
            requests.send((method, args))
        self._pending = seconds + (START_LIMIT_S if self._fresh else 0.0)

    def _receive(self, method: str) -> Any:
        answers, limit = self._answers, self._pending
        if answers is None or limit is None:
            raise WorkerError("the e-graph worker was asked nothing", where=method)
        with self._failures(method):
            if not answers.poll(limit):
                raise WorkerError(
                    f"the e-graph worker did not answer within {limit:g} s",
                    where=method,
                    why="it was killed",
                    fix="lower the budget's e-nodes, or raise its seconds",
                )
            ok, result = answers.recv()
        self._pending = None
        self._fresh = False
        if ok:
            return result
        if isinstance(result, WorkerError) or not isinstance(result, PrismError):
            self._kill()  # after a failed command an e-graph is half changed
        raise result

    @contextlib.contextmanager
    def _failures(self, method: str) -> Iterator[None]:
        """Whatever goes wrong between question and answer leaves the two sides out of step: the child is killed."""
        try:
            yield
        except (EOFError, OSError) as error:
            self._left()
            why = self._child.end("it ended")
            raise WorkerError(
                "the e-graph worker died", where=method, why=why, fix="lower the budget's e-nodes"
            ) from error
        except RecursionError as error:
            self._kill()
            raise TooDeepError(
                "an expression is nested too deeply", where=method, fix="split the program at a materialised tensor"
            ) from error
        except BaseException:
            self._kill()
            raise

    def _start(self) -> None:
        self._child.start()
        requests, answers = self._child.pipes()
        self._requests = Connection(os.dup(requests.fileno()), readable=False)
        self._answers = Connection(os.dup(answers.fileno()), writable=False)
        self._fresh = True

    def _kill(self) -> None:
        """End the process if there is one."""
        self._left()
        self._child.kill()

    def _left(self) -> None:
        """Expect no answer of the process any more."""
        self._disconnect()
        self._fresh = True
        self._pending = None

    def _disconnect(self) -> None:
        for pipe in (self._requests, self._answers):
            if pipe is not None:
                pipe.close()
        self._requests = self._answers = None
