"""Children that are forked by a process that has imported what they need."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from prism.process.child import Child, Fork, signal_session
from prism.process.fork_server import ForkServer
from prism.process.worker import Ending, Worker

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere children are fresh processes"),
    pytest.mark.usefixtures("cold"),
]

ANSWERS = """
import json, os, sys
print({said!r}, file=sys.stderr)
for line in sys.stdin:
    request = json.loads(line)
    if "end" in request:
        os._exit(request["end"])
    answer = {{"pid": os.getpid(), "group": os.getpgid(0), "parent": os.getppid()}}
    answer |= {{"colorsys": "colorsys" in sys.modules, "here": os.getcwd()}}
    answer |= {{"set": os.environ.get("SET"), "path": sys.path[0]}}
    print(json.dumps(answer), flush=True)
"""
COMMAND = [sys.executable, "-P", "-c", ANSWERS.format(said="said before")]
LIMIT_S = 60.0


@pytest.fixture
def server() -> Iterator[ForkServer]:
    with ForkServer(dict(os.environ)) as made:
        yield made


@pytest.fixture
def fork(server: ForkServer) -> Fork:
    return partial(server.start, modules=["colorsys", "no_such_module"])


def test_a_child_is_as_a_fresh_process_but_for_what_is_imported(server: ForkServer, fork: Fork) -> None:
    with closing(Worker(COMMAND, {**os.environ, "SET": "it", "PYTHONPATH": "/some/place"}, fork=fork)) as worker:
        first = worker.ask({}, LIMIT_S).answer
        assert first["colorsys"]
        assert first["group"] == first["pid"], "a compiler that it starts is killed with it"
        assert first["parent"] not in (os.getpid(), first["pid"])
        assert (first["here"], first["set"], first["path"]) == (str(Path.cwd()), "it", "/some/place")
        reply = worker.ask({"end": 7}, LIMIT_S)
        assert (reply.ending, reply.detail) == (Ending.CRASH, "the process ended with status 7: said before")
        again = worker.ask({}, LIMIT_S).answer
        assert again["pid"] != first["pid"]
        assert again["parent"] == first["parent"], "the same server"


def test_what_is_begun_is_imported_before_a_child_is_asked_for(server: ForkServer) -> None:
    server.begin(["colorsys", "no_such_module"])
    with closing(Worker(COMMAND, os.environ, fork=partial(server.start, modules=()))) as worker:
        assert worker.ask({}, LIMIT_S).answer["colorsys"]
    server.close()
    server.begin(["colorsys"])  # of one that is no more nothing is asked


def test_children_of_a_server_that_is_no_more_are_fresh(server: ForkServer, fork: Fork) -> None:
    with closing(Worker(COMMAND, os.environ, fork=fork)) as worker:
        one = worker.ask({}, LIMIT_S).answer
        server.close()
        other = worker.ask({}, LIMIT_S).answer
        assert one["parent"] != other["parent"] == os.getpid()
        while Path(f"/proc/{one['pid']}").exists():
            time.sleep(0.01)


def test_a_child_that_is_killed_is_seen_to_end(server: ForkServer, fork: Fork) -> None:
    child = Child(COMMAND, fork=fork)
    assert child.start()
    first = child.pid
    assert not child.start(), "it runs"
    child.kill()
    assert child.start()
    assert child.pid != first
    child.interrupt(last=True)
    assert child.line(time.monotonic() + LIMIT_S) == b""
    child.close()


def test_who_interrupts_does_not_wait_for_imports(server: ForkServer, fork: Fork) -> None:
    first = Child(COMMAND, fork=fork)
    assert first.start()
    assert server._process is not None
    signal_session(server._process, signal.SIGSTOP)  # as if they took for ever
    child = Child(COMMAND, fork=fork)
    starting = threading.Thread(target=child.start)
    starting.start()
    while not server._turn.locked():
        time.sleep(0.01)
    child.interrupt(last=True)
    assert starting.is_alive()
    signal_session(server._process, signal.SIGCONT)
    starting.join()
    assert child.line(time.monotonic() + LIMIT_S) == b"", "it was interrupted before it was there"
    child.close()
    first.close()


def test_an_allocator_that_is_forked_keeps_memory_as_one_that_is_loaded(server: ForkServer, fork: Fork) -> None:
    """With MALLOC_MMAP_MAX_=0 large blocks lie in the heap, which grows by them."""
    text = """
import re
def heap():
    found = re.findall(r"(\\w+)-(\\w+) .*\\[heap\\]", open("/proc/self/maps").read())
    return sum(int(end, 16) - int(start, 16) for start, end in found)
before = heap(); made = bytearray(64 << 20); print(heap() - before, flush=True); input()
"""
    for kept in ("", "0"):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
        child = Child(
            [sys.executable, "-P", "-c", text], environment | ({"MALLOC_MMAP_MAX_": kept} if kept else {}), fork
        )
        child.start()
        grown = int(child.line(time.monotonic() + LIMIT_S) or b"-1")
        assert (grown >= 64 << 20) == bool(kept)
        child.close()
