"""The child that compiles C++ modules and runs them: for the numeric gate, and against the clock. It may be lost.

    python -m prism.platforms.cpu_worker

A request with `compile` or `product` is for the compiler, one with `contenders` for the clock (see `time_contenders`),
one with `assembled` runs a whole model (see `run_assembled`), one with `wake` imports, any other is for the gate (see
`run_module`); those of the clock and the gate have the form that the GPU's workers take. All contenders share inputs,
and are called in turn, contender by contender, so that a clock that drifts drifts for all. Before each sample the
contender is called once unheard: its threads wake, the other runtime's have gone to sleep, and caches hold what they
would in a loop. What fits in the caches is therefore found there; what does not comes from memory.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from prism.backends.cpu import build
from prism.backends.cpu.running import bound_call
from prism.backends.interleave import interleave
from prism.backends.tensors import Framed, save
from prism.instantiate.machine_load import Load, Watch, load_now
from prism.instantiate.rounds import (
    ENDLESS_S,
    HOPELESS,
    LASTING,
    LEADING,
    SETTLE_S,
    WARM_S,
    Prepared,
    Queue,
    contest,
    rounds,
)
from prism.process.imports import uncollected
from prism.process.serve import Answer, Request, one_line, serve
from prism.sgraph.config import Config

ROUNDS_S = 4.0
"""Rounds of leaders of a study that meet should take no longer than this, seconds,"""
TRIAL_S = 1.0
"""and the samples of a trial, of which leaders are what is wanted."""
SPIN_S = 4e-2
"""How long to wait after onnxruntime's turn, seconds: its threads spin for longer than OpenMP's."""
HELPED = 1.25
"""How many times as long torch's own calls may take on fewer threads, for torch's compiler to be asked about these."""
TRIAL_WARM_S = 1e-3
"""How long a sample of a study's trial begins with calls that are not counted, seconds: emitted modules alone share
their threads, so that none has to be waited for, and no processor rests."""
CONTEST_WARM_S = 1e-2
"""How long a turn of a contest begins with calls that are not counted, seconds."""
CROWDED_WARM_S = 2e-2
"""How long it does where cores are taken, seconds."""


def threads() -> int:
    """The threads of every contender that names no number of its own."""
    return int(os.environ.get("OMP_NUM_THREADS", "0")) or len(os.sched_getaffinity(0))


def prepare_contenders(request: Request) -> Answer:
    """Make a contest's contenders ready, so that the contest, which is the next request, finds them so.

    The answer says how many seconds a call of each takes, by place; not of those that fail.
    """
    specs: Sequence[Mapping[str, Any]] = request["contenders"]
    wake([s["kind"] for s in specs])
    import torch

    from prism.platforms.contenders import contenders_on

    torch.set_num_threads(threads())
    makes = contenders_on(Path(request["inputs"]))
    seconds: dict[int, float] = {}
    given_up: dict[int, float] = {}
    for n in made_in(specs):
        if hopeless(n, specs, seconds | given_up):
            continue
        many, limit_s = _threads_of(specs[n]), patience(n, specs, seconds)
        torch.set_num_threads(many)
        try:
            with torch.inference_mode():
                seconds[n] = makes.prepared(specs[n], many, limit_s).call_s
        except TimeoutError:
            given_up[n] = limit_s or math.inf
        except Exception:
            continue  # the contest says what is wrong with it
    return {"seconds": {str(n): s for n, s in seconds.items()}}


def wake(kinds: Sequence[str]) -> Answer:
    """Import what contenders of these kinds need, before it is known on what they will run."""
    with uncollected():
        from prism.platforms import contenders

        contenders.wake(kinds)
    return {}


def _threads_of(spec: Mapping[str, Any]) -> int:
    return int(spec.get("threads") or threads())


def _but(spec: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """A contender without what these keys say."""
    return {k: v for k, v in spec.items() if k not in keys}


def made_in(specs: Sequence[Mapping[str, Any]]) -> list[int]:
    """The places of contenders in the order in which they are made: what may not be worth it comes last."""
    slow = ("eager", "compiled")  # of half precision on some processors, by a hundred times
    return sorted(range(len(specs)), key=lambda n: (_threads_of(specs[n]) < threads(), specs[n]["kind"] in slow))


def patience(n: int, specs: Sequence[Mapping[str, Any]], seconds: Mapping[int, float]) -> float | None:
    """What the first two calls of a contender may take, seconds: far longer, and it has no chance; None for any time.

    `n` is its place among the contenders' `specs`; `seconds` are what a call of those takes that are made, by place.
    """
    rivals = [s for m, s in seconds.items() if specs[m].get("side") == specs[n].get("side")]
    return 2 * max(ENDLESS_S, HOPELESS * min(rivals)) if rivals else None


def hopeless(n: int, specs: Sequence[Mapping[str, Any]], seconds: Mapping[int, float]) -> str:
    """Why it is not worth timing on fewer threads what is timed on all of them; empty where it may be.

    torch.compile takes many seconds for each number of threads, and some calls do. What it compiles gains from threads
    where the same model gains from them as it is: both are mostly the same matrix products. `n`, `specs` and
    `seconds` are as for `patience`; of what was given up, these are what it had taken by then.
    """
    spec = specs[n]
    same = [m for m in seconds if _but(specs[m], "threads") == _but(spec, "threads")]
    if _threads_of(spec) == threads() or not same:
        return ""
    all_threads = _threads_of(specs[same[0]])
    if spec["kind"] == "compiled":
        model = {"kind": "eager", **_but(spec, "kind", "compile_s", "threads")}
        plain = {_threads_of(specs[m]): s for m, s in seconds.items() if _but(specs[m], "threads") == model}
        few, many = plain.get(_threads_of(spec)), plain.get(all_threads)
        if few is not None and many is not None and few > HELPED * many:
            return f"as it is, the model takes {few / many:.1f} times as long as on {all_threads} threads"
    taken = seconds[same[0]]
    if spec["kind"] != "compiled" and taken <= ENDLESS_S:
        return ""
    best = min(s for m, s in seconds.items() if specs[m].get("side") == spec.get("side"))
    if taken <= HOPELESS * best:
        return ""
    return f"on {all_threads} threads it takes {taken / best:.0f} times as long as the best, or longer"


def time_contenders(request: Request) -> Answer:
    """Time contenders against each other; request and answer are those of `prism.backends.triton.timing`.

    Where the request has `limit_s` it is a contest: each contender names its `side` and its `threads`, modules are
    called as their users call them, and the answer says how busy others than the process that `waits` for it kept the
    machine. Otherwise it is a study's trial,
    whose modules write into outputs that are poisoned before.
    """
    specs: Sequence[Mapping[str, Any]] = request["contenders"]
    limit_s = request.get("limit_s")
    if limit_s is not None:
        wake([s["kind"] for s in specs])
    import torch

    # They import torch, which a worker that compiles has no need of.
    from prism.platforms.contenders import compared, contenders_on

    torch.set_num_threads(threads())
    makes = contenders_on(Path(request["inputs"]))
    queue = Queue()
    most = max(map(_threads_of, specs))
    crowded = limit_s is not None and most > 1 and _load_before(request, most).crowded
    lasting = LASTING if crowded else 1
    warm_s, settle_s = CROWDED_WARM_S if crowded else CONTEST_WARM_S, SETTLE_S
    if limit_s is None:
        warm_s, settle_s = (TRIAL_WARM_S, 0.0) if all(s["kind"] == "module" for s in specs) else (WARM_S, SETTLE_S)
    prepared: list[Prepared | None] = [None] * len(specs)
    answers: list[dict[str, Any]] = [{} for _ in specs]
    held: list[list[Any]] = []
    given_up: dict[int, float] = {}
    for n in made_in(specs):
        spec, known = specs[n], {m: p.call_s for m, p in enumerate(prepared) if p is not None}
        # Threads that wait for each other may only have stalled.
        why = "" if crowded or limit_s is None else hopeless(n, specs, known | given_up)
        if why:
            answers[n] = {"hopeless": why}
            continue
        outputs = [torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in request["outputs"]]
        _poison(outputs)
        held.append(outputs)
        many, most_s = _threads_of(spec), None if crowded else patience(n, specs, known)
        ready = partial(torch.set_num_threads, many)
        try:
            ready()
            how: dict[str, Any] = {
                "warm_s": warm_s,
                "settle_s": settle_s,
                "rest_s": SPIN_S if spec["kind"] in ("onnxruntime", "assembled") else 0.0,
                "ready": ready,
                "waited": queue if many == 1 else None,
                "lasting": lasting if many > 1 else 1,
            }
            with torch.inference_mode():
                if limit_s is None:
                    prepared[n] = Prepared(makes.call(spec, many, outputs), **how)
                else:
                    prepared[n] = makes.prepared(spec, many, most_s, **how)
        except TimeoutError as error:
            answers[n], given_up[n] = {"hopeless": str(error)}, most_s or math.inf
        except Exception as error:
            answers[n] = {"error": one_line(error)}
    able = [p for p in prepared if p is not None]
    for outputs in held:
        _poison(outputs)
    watch = Watch()
    with torch.inference_mode():
        if limit_s is None:
            taken = trial(able, int(request["repeats"]), float(request.get("beat_s", math.inf)))
        else:
            sides = [str(s["side"]) for s, p in zip(specs, prepared, strict=True) if p is not None]
            code = [json.dumps({**s, "threads": 0}) for s, p in zip(specs, prepared, strict=True) if p is not None]
            taken = contest(able, sides, int(request["repeats"]), float(limit_s), code, crowded)
    queue.close()
    load = watch.load(most)
    samples = iter(taken)
    results = []
    for answer, p in zip(answers, prepared, strict=True):
        results.append(compared(p.results) if p is not None else [])
        if p is not None:
            answer["samples"] = next(samples)
            answer["calls"] = p.calls
    save(results, request["results"])
    return {"contenders": answers, "load": asdict(load)}


def _load_before(request: Request, threads: int) -> Load:
    """How busy others keep the machine as a contest begins: what the one that has just ended saw, or a look."""
    seen = request.get("load")
    return replace(Load(**seen), threads=threads) if seen else load_now(threads, request.get("waits"))


def trial(contenders: Sequence[Prepared], repeats: int, beat_s: float) -> list[list[float]]:
    """Seconds of a study's trial, by contender: of one alone whose calls are long, samples that follow each other.

    `repeats` samples are wanted; a contender that is far from `beat_s`, the study's least seconds so far, is called
    once more.
    """
    count = rounds(contenders, repeats, ROUNDS_S if len(contenders) > 1 else TRIAL_S)
    if len(contenders) == 1:
        (one,) = contenders
        if one.call_s > LEADING * beat_s:
            return [[one.once()]]  # it has to write its outputs, which were poisoned
        if one.call_s > WARM_S:  # what warms it up would take as long again
            return [one.turn(count)]
    return interleave([p.sample for p in contenders], count)


def _poison(outputs: Sequence[Any]) -> None:
    for t in outputs:
        t.fill_(float("nan") if t.is_floating_point() else 1)


def run_module(request: Request) -> Answer:
    """Run a module once, its outputs poisoned before; request and answer are those of the GPU's check worker."""
    import torch

    inputs = [torch.load(path) for path in request["inputs"]]
    framed = Framed(request["outputs"], "cpu")
    bound_call(Path(request["module"]), Config.decode(request["config"]), inputs, framed.outputs, threads())()
    return framed.answer(request["results"])


def compile_module(request: Request) -> Answer:
    """Compile a module for a configuration: an error, or nothing; what was compiled is found again by its source."""
    config = Config.decode(request["config"])
    built = build.compile_module(Path(request["compile"]), config, timeout_s=request["limit_s"])
    return {"error": built.error}


def compile_products(request: Request) -> Answer:
    """Compile a matrix product ahead: an error, or nothing; sources that call it are linked with it."""
    return {"error": build.compile_product(request["product"], request["limit_s"])}


def run_assembled(request: Request) -> Answer:
    """Run a whole model of an output folder on several inputs."""
    import torch

    from prism.platforms.contenders import assembled, compared

    model = assembled(Path(request["assembled"]), threads())
    torch.save([compared(model(torch.load(path))) for path in request["inputs"]], request["results"])
    return {}


def answer(request: Request) -> Answer:
    """Whichever of the seven is asked for."""
    if "wake" in request:
        return wake(request["wake"])
    if "product" in request:
        return compile_products(request)
    if "assembled" in request:
        return run_assembled(request)
    if "compile" in request:
        return compile_module(request)
    if request.get("prepare"):
        return prepare_contenders(request)
    return time_contenders(request) if "contenders" in request else run_module(request)


if __name__ == "__main__":
    serve(answer)
