"""Contests that are timed by a script: what a child that times would answer, without a clock."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from prism.api import choosing, composing
from prism.backends.eager import eager
from prism.platforms.cpu import CpuPlatform
from prism.process.worker import Ending, Reply, Worker


class Arena(Worker):
    """Answers as the timing child would, by a script of one entry a match; the last one is for all that follow.

    Args:
        matches: seconds by contender: `eager4` is eager on four threads, `eager` on any number, a module is known by
            its file's name; what is not named takes a second.
        others: how many of four cores other processes keep busy.
        noise: by how much each of eight samples is longer; alike for all contenders, in another order for modules.
    """

    def __init__(self, *matches: Mapping[str, float], others: float = 0.0, noise: Sequence[float] = (0.0,) * 8) -> None:
        super().__init__([sys.executable], {})
        self.matches = matches
        self.requests: list[Mapping[str, Any]] = []
        self.prepared: list[Mapping[str, Any]] = []
        self.others = others
        self.noise = noise

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> Reply:
        if "wake" in request:
            return Reply(Ending.ANSWERED)
        times = self.matches[min(len(self.requests), len(self.matches) - 1)]
        if request.get("prepare"):
            self.prepared.append(request)
            taken = {str(n): times.get(f"{c['kind']}{c['threads']}", 1.0) for n, c in enumerate(request["contenders"])}
            return Reply(Ending.ANSWERED, {"seconds": taken})
        self.requests.append(request)
        results = self.results(request)
        answers: list[dict[str, Any]] = []
        for c in request["contenders"]:
            name = c["kind"] if c["kind"] != "module" else Path(c["module"]).stem
            if name == "dies":
                return Reply(Ending.CRASH, detail="lost")
            seconds = times.get(f"{name}{c['threads']}", times.get(name, 1.0))
            noise = self.noise if c["kind"] == "module" else self.noise[::-1]
            answers.append({"samples": [seconds * (1 + n / 1000 + noise[n]) for n in range(8)], "calls": 1})
        torch.save([results for _ in answers], request["results"])
        load = {"cores": 4, "threads": 4, "others": self.others, "average": 1.0}
        return Reply(Ending.ANSWERED, {"contenders": answers, "load": load})

    def results(self, request: Mapping[str, Any]) -> Sequence[Any]:
        """The outputs of every contender: those of the program."""
        inputs = torch.load(request["inputs"])
        program = pickle.loads(Path(request["inputs"]).with_name("program.pickle").read_bytes())
        return eager(program)(*inputs)


def scripted(
    monkeypatch: pytest.MonkeyPatch,
    *matches: Mapping[str, float],
    others: float = 0.0,
    noise: Sequence[float] = (0.0,) * 8,
) -> Arena:
    """Let contests on the CPU be timed by a script; kernels are called `kernels`. Trials are timed as ever."""
    arena = Arena(*matches, others=others, noise=noise)
    monkeypatch.setattr(CpuPlatform, "arena", lambda self: arena)
    monkeypatch.setattr(Arena, "close", lambda self: None)
    for module in (choosing, composing):
        monkeypatch.setattr(module, "others_now", lambda: others)
    return arena
