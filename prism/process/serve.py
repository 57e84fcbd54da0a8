"""The child's side: one JSON request a line on standard input, one JSON answer a line on what standard output was.

Compilers and kernels print to standard output as they like, so the answers go to a private copy of it and file
descriptor 1 is pointed at standard error before anything heavy is imported. What a machine refuses (a full disk, too
many open files, rights that a user does not have) is said apart from what a kernel does wrong.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

_MACHINE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
    | {errno.EAGAIN, errno.EIO, errno.EFBIG}
)
"""What a system call says where the machine, or the user's rights on it, do not suffice."""


def refused_by_machine(error: OSError) -> bool:
    """Whether the machine, or the user's rights on it, do not suffice: the fault of neither prism nor a kernel."""
    return error.errno in _MACHINE


Request: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = Mapping[str, Any]

GRACE_S = 30.0
"""How long a child outlives its time limit when the parent that should have killed it is gone, seconds."""


def one_line(error: BaseException) -> str:
    """An exception as one short line."""
    # Triton says first which call did not compile, and of what is called why.
    while type(error.__cause__) is type(error):
        error = error.__cause__
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {text[:600]}" if text else name


def private_output() -> int:
    """A file descriptor for answers: standard output as it was, which from now on is standard error."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


BEGIN: Mapping[str, Any] = {"begin": True}
"""The request to make everything ready that any other request needs."""


def serve(handler: Callable[[Request], Answer], begin: Callable[[], Answer] = dict) -> None:
    """Answer requests until standard input ends.

    Args:
        handler: from a request to its answer. What it raises becomes the answer's `error`; a request's `timeout_s`
            arms an alarm, so that a hung child does not outlive its parent.
        begin: does what BEGIN asks for, as imports.
    """
    answers = os.fdopen(private_output(), "w", encoding="utf-8")
    # Not Python's handler: one would wait for the hung extension module to return.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        if not line.strip():
            continue
        request: Request = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, float(request.get("timeout_s", 600.0)) + GRACE_S)
        try:
            answer = begin() if "begin" in request else handler(request)
        except Exception as error:
            answer = {"error": one_line(error)}
            if isinstance(error, OSError) and refused_by_machine(error):
                answer["refused"] = [error.errno, error.strerror, error.filename]
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
