"""What users run, on the device that is here: a function, a model and a module that is trained, from source to calls.

    python benchmarks/whole_path.py                       # all steps, sizes of a GPU; of a CPU with --target cpu
    python benchmarks/whole_path.py function --out FOLDER --limit 120 --trials 8

    function  prism.optimize of RMSNorm's backward pass: its kernels against float64, and what a call takes of the
              function, of its operator of torch and of a captured graph, beside eager and torch.compile
    model     `prism optimize` of an ONNX file (a gated MLP behind a norm), `prism verify` of the folder, the same again
    training  prism.compile of a block: loss and gradients against eager, and what a step takes

Each step is a process of its own, with folders and a cache of its own, that is ended at its limit; what it says goes to
FOLDER/STEP.txt with the seconds since it began, and its last lines to the terminal. The exit code is 1 if one failed.
Times of calls are of a clock around many, once as the host issues them and once to their end, in microseconds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

WARM, TIMED = 20, 200
"""Calls before those that are timed, and these."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step is asked for.

    Attributes:
        folder: where files go.
        target: `cuda` or `cpu`.
        trials: configurations that are tried.
        begun: when, by the monotonic clock.
    """

    folder: Path
    target: str
    trials: int
    begun: float = field(default_factory=time.monotonic)

    @property
    def on_cpu(self) -> bool:
        """Whether sizes are small, and numbers float32."""
        return self.target == "cpu"

    @property
    def dtype(self) -> Any:
        """Of torch."""
        import torch

        return torch.float32 if self.on_cpu else torch.bfloat16

    def say(self, *what: object) -> None:
        """A line, with the seconds so far."""
        print(f"[{time.monotonic() - self.begun:6.1f}]", *what, flush=True)

    def clock(self, what: str, call: Callable[[], object], calls: int = TIMED) -> None:
        """Say what a call takes: as it is issued, and to its end."""
        for _ in range(WARM):
            call()
        self._wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        issued = time.perf_counter() - start
        self._wait()
        ended = time.perf_counter() - start
        self.say(f"{what}: {1e6 * issued / calls:.2f} us to issue, {1e6 * ended / calls:.2f} to its end")

    def _wait(self) -> None:
        import torch

        if not self.on_cpu:
            torch.cuda.synchronize()

    def run(self, *arguments: str) -> int:
        """The command, its output told: the exit code."""
        done = subprocess.run([sys.executable, "-m", "prism", *arguments], capture_output=True, text=True)
        self.say("prism", *arguments, "exits with", done.returncode)
        print(done.stdout[-4000:], done.stderr[-4000:], sep="\n", flush=True)
        return done.returncode


def apart(found: Any, wanted: Any) -> str:
    """The distance of two tensors, relative to the second."""
    found, wanted = found.double(), wanted.double()
    return f"{float((found - wanted).norm() / wanted.norm()):.2g}"


def function(step: Step) -> int:
    """A traced function."""
    import torch

    import prism

    m, n = (64, 256) if step.on_cpu else (4096, 2048)

    def rms_norm_backward(x: Any, g: Any, dy: Any) -> Any:
        wide = x.float()
        r = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        normal, dn = wide * r, dy.float() * g.float()
        dx = r * (dn - normal * (dn * normal).mean(-1, keepdim=True))
        return dx.to(x.dtype), (dy.float() * normal).sum(0).to(x.dtype)

    torch.manual_seed(0)
    given = [torch.randn(s, dtype=step.dtype, device=step.target) for s in ((m, n), (n,), (m, n))]
    program = prism.trace(rms_norm_backward, [t.to("meta") for t in given], name="rms_norm_backward")
    step.say("traced")
    made = prism.optimize(program, target=step.target, out=step.folder / "function", trials=step.trials)
    step.say(made)
    wanted = rms_norm_backward(*(t.double() for t in given))
    operator = made.torch_op()
    turned = [t.T.contiguous().T if t.dim() == 2 else t for t in given]
    for name, found in (("kernels", made(*given)), ("operator", operator(*given)), ("of turned", made(*turned))):
        step.say(name, "apart from float32:", *(apart(f, w) for f, w in zip(found, wanted, strict=True)))
    step.clock("kernels", lambda: made(*given))
    step.clock("operator", lambda: operator(*given))
    module = _emitted(step.folder / "function")
    capture = getattr(module, "capture", None)
    if capture is not None and not step.on_cpu:
        replay = capture(*given, keep=(0, 1, 2))
        step.say("graph apart from float32:", *(apart(f, w) for f, w in zip(replay(), wanted, strict=True)))
        step.clock("captured graph", replay)
    step.clock("eager", lambda: rms_norm_backward(*given))
    compiled = torch.compile(rms_norm_backward)
    step.clock("torch.compile", lambda: compiled(*given))
    return 0


def _emitted(folder: Path) -> Any:
    from prism.backends.loading import load_module

    return load_module(next(p for p in sorted(folder.glob("*.py")) if "CONFIGS" in p.read_text("utf-8")))


def model(step: Step) -> int:
    """An ONNX file."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    m, k, n = (8, 256, 512) if step.on_cpu else (16, 2048, 5632)
    dtype, element = (np.float32, TensorProto.FLOAT) if step.on_cpu else (np.float16, TensorProto.FLOAT16)
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> Any:
        return numpy_helper.from_array((rng.standard_normal(shape) / shape[0] ** 0.5).astype(dtype), name)

    held = [weight("gate", k, n), weight("up", k, n), weight("down", n, k)]
    held += [numpy_helper.from_array(np.ones(k, dtype), "g"), numpy_helper.from_array(np.array(1e-5, dtype), "eps")]
    nodes = [
        ("Mul", "x x", "squares"),
        ("ReduceMean", "squares", "mean"),
        ("Add", "mean eps", "above"),
        ("Sqrt", "above", "root"),
        ("Div", "x root", "normal"),
        ("Mul", "normal g", "scaled"),
        ("MatMul", "scaled gate", "gated"),
        ("MatMul", "scaled up", "raised"),
        ("Sigmoid", "gated", "share"),
        ("Mul", "gated share", "silu"),
        ("Mul", "silu raised", "both"),
        ("MatMul", "both down", "lowered"),
        ("Add", "lowered x", "y"),
    ]
    along: dict[str, Any] = {"axes": [-1], "keepdims": 1}
    made = [
        helper.make_node(name, given.split(), [out], **(along if name == "ReduceMean" else {}))
        for name, given, out in nodes
    ]
    x, y = (helper.make_tensor_value_info(name, element, [m, k]) for name in "xy")
    graph = helper.make_graph(made, "mlp", [x], [y], held)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(whole)
    path = step.folder / "mlp.onnx"
    onnx.save(whole, path)
    step.say("written")
    common = ("optimize", str(path), "--target", step.target, "--trials", str(step.trials))
    code = step.run(*common, "--out", str(step.folder / "model"))
    if not code:
        code = step.run("verify", str(step.folder / "model")) or step.run(*common, "--out", str(step.folder / "again"))
    return code


def training(step: Step) -> int:
    """A module."""
    import copy
    import logging

    import torch

    import prism

    logging.basicConfig(format="%(name)s: %(message)s")
    logging.getLogger("prism.compile").setLevel(logging.INFO)
    m, k, n = (32, 64, 128) if step.on_cpu else (4096, 1024, 2816)

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = torch.nn.LayerNorm(k)
            self.gate, self.up = torch.nn.Linear(k, n, bias=False), torch.nn.Linear(k, n, bias=False)
            self.down = torch.nn.Linear(n, k, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            normal = self.norm(x)
            found: torch.Tensor = x + self.down(torch.nn.functional.silu(self.gate(normal)) * self.up(normal))
            return found

    torch.manual_seed(0)
    eager = Block().to(step.target, step.dtype)
    ours, theirs = copy.deepcopy(eager), copy.deepcopy(eager)
    fast, compiled = prism.compile(ours, target=step.target, trials=step.trials), torch.compile(theirs)
    x = torch.randn(m, k, device=step.target, dtype=step.dtype)

    def once(of: Any) -> Any:
        of.zero_grad(set_to_none=True)
        loss = of(x).float().square().mean()
        loss.backward()
        return loss

    step.say("losses:", once(fast).item(), once(eager).item())
    pairs = zip(ours.named_parameters(), eager.parameters(), strict=True)
    step.say("gradients apart:", {name: apart(p.grad, q.grad) for (name, p), q in pairs})
    for name, of in (("prism", fast), ("eager", eager), ("torch.compile", compiled)):
        step.clock(f"{name}, a step", partial(once, of), TIMED // 4)
    return 0


STEPS: dict[str, Callable[[Step], int]] = {"function": function, "model": model, "training": training}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}; all by default")
    parser.add_argument("--out", type=Path, default=Path("out") / "whole-path", help="where files go; out/whole-path")
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda", help="the device; cuda")
    parser.add_argument("--trials", type=int, default=8, help="configurations that are tried; 8")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a step at most; 300")
    parser.add_argument("--within", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    unknown = sorted(set(args.steps) - STEPS.keys())
    if unknown:
        parser.error(f"no step is called {', '.join(unknown)}: there are {', '.join(STEPS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.within:
        (name,) = args.steps
        return STEPS[name](Step(args.out.resolve(), args.target, args.trials))
    failed = False
    environment = os.environ | {"PRISM_CACHE_DIR": str((args.out / "cache").resolve()), "PYTHONPATH": str(ROOT)}
    environment["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
    for name in args.steps or STEPS:
        log = args.out / f"{name}.txt"
        asked = [name, "--within", "--out", args.out, "--target", args.target, "--trials", args.trials]
        command = [sys.executable, "-u", __file__, *map(str, asked)]
        with log.open("wb") as file:
            try:
                code = subprocess.run(command, stdout=file, stderr=file, env=environment, timeout=args.limit).returncode
            except subprocess.TimeoutExpired:
                code = 124
        failed |= code != 0
        print(f"{name}: {'done' if not code else f'exit code {code}'}", flush=True)
        print("\n".join(log.read_text("utf-8", "replace").splitlines()[-15:]), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
