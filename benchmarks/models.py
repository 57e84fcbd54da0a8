"""Whole models on a CPU: what `prism optimize` makes of transformers' classes, against onnxruntime and torch.

    python benchmarks/models.py [--only bert,llama] [--budget 120s] [--threads 2] [--compile] [--dynamic] [--opset 18]
    python benchmarks/models.py --packaged [--only light_resnet50] [--budget 120s] [--threads 2]
    python benchmarks/models.py --read [--only bert,llama] [--dynamic] [--past] [--opset 17] [--exporter legacy]
    python benchmarks/models.py --read --packaged

The models have random weights, two layers, hidden size 256 and sequences of 128 (a ResNet: four stages of one block, 64
to 512 channels, images of 224 x 224), and are made and exported on the spot;
transformers and onnxscript have to be installed (`pip install transformers onnxscript`); no weights are loaded.
Each is given to the command twice, in a process of its own; the second run finds what the first one kept. Then the
folder's `model.py`, onnxruntime on the exported file, torch eager and, with `--compile`, torch.compile run in turn in
one process on the same number of threads, each round beginning with another one.

A ratio is how many times as long another one takes as prism, by medians, with the quartiles of the rounds' own ratios.
Where prism keeps the model as it was, because nothing is faster than onnxruntime, there is no folder to time: what a
user runs then is onnxruntime, so the row counts as 1.00 and says so. A model that fails is a row that says why.
`error` is the largest one over what rounding explains (`prism.instantiate.model_bench`): the gate is at 1.

With `--packaged` the models are ONNX files that come inside installed packages (`benchmarks/packaged.py`): those of ten
operators or more, against onnxruntime alone, as torch has none of them; neither transformers nor onnxscript is needed.

With `--read` nothing is optimised: 41 classes, tiny, are exported, read, cut into islands where they have to be, and
what is read is compared with onnxruntime (`benchmarks/reading.py`); one that torch does not export is no failure. With
`--packaged` these are all files in packages; one that onnxruntime does not take is no failure either.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import model_zoo, packaged
from benchmarks.model_zoo import SPECIMENS, TEXT, Sizes, Specimen, made

if TYPE_CHECKING:
    import numpy as np
    import onnx

HIDDEN, HEADS, SEQUENCE, VOCABULARY, LAYERS = 256, 4, 128, 1000, 2
ROUNDS, ROUND_S, SETTLE_S = 20, 0.06, 0.05
"""Rounds, seconds of a contender's turn in one, and between turns: onnxruntime's threads spin for a while."""
EXPORT_LIMIT_S, TIME_LIMIT_S = 300.0, 600.0
OVERTIME = 1.5
"""A command that takes more than its budget times this, and a minute, is killed and told as a failure."""
PRISM, STOCK, EAGER, COMPILED = "prism", "onnxruntime", "torch eager", "torch.compile"


_BERT = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 4 * HIDDEN,
    "max_position_embeddings": 512,
}
_LLAMA = _BERT | {"num_key_value_heads": 2, "intermediate_size": 2 * HIDDEN, "use_cache": False}
_GPT2 = {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 512, "use_cache": False}
_T5 = {"d_model": HIDDEN, "num_layers": LAYERS, "num_heads": HEADS, "d_kv": HIDDEN // HEADS, "d_ff": 4 * HIDDEN}
_VIT = {k: v for k, v in _BERT.items() if k not in ("vocab_size", "max_position_embeddings")}
_WHISPER = {
    "d_model": HIDDEN,
    "encoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "encoder_ffn_dim": 4 * HIDDEN,
    "num_mel_bins": 80,
    "max_source_positions": SEQUENCE,
}
_TOKENS = {"input_ids": "ids"}
SIZES = Sizes(batch=1, sequence=SEQUENCE, vocabulary=VOCABULARY)
MODELS: Mapping[str, Specimen] = MappingProxyType(
    {
        "bert": Specimen("BertConfig", "BertModel", _BERT, TEXT, made={"add_pooling_layer": False}),
        "gpt2": Specimen("GPT2Config", "GPT2Model", _GPT2 | {"vocab_size": VOCABULARY}, _TOKENS),
        "llama": Specimen("LlamaConfig", "LlamaModel", _LLAMA, _TOKENS),
        "vit": Specimen(
            "ViTConfig",
            "ViTModel",
            _VIT | {"image_size": (128, 256), "patch_size": 16},
            {"pixel_values": (1, 3, 128, 256)},
            made={"add_pooling_layer": False},
        ),
        "t5": Specimen("T5Config", "T5EncoderModel", _T5 | {"vocab_size": VOCABULARY, "use_cache": False}, _TOKENS),
        "qwen3": Specimen("Qwen3Config", "Qwen3Model", _LLAMA | {"head_dim": HIDDEN // HEADS}, _TOKENS),
        "whisper": Specimen(
            "WhisperConfig",
            "transformers.models.whisper.modeling_whisper.WhisperEncoder",
            _WHISPER,
            {"input_features": (1, 80, 256)},
        ),
        "resnet": Specimen(
            "ResNetConfig",
            "ResNetModel",
            {"embedding_size": 64, "hidden_sizes": [64, 128, 256, 512], "depths": [1] * 4, "layer_type": "basic"},
            {"pixel_values": (1, 3, 224, 224)},
        ),
    }
)
"""What is timed: they return their last hidden state."""


@dataclass(frozen=True, slots=True)
class Row:
    """What came of a model.

    Attributes:
        name: the model's.
        first_s, second_s: the command's wall time, and that of the same command again.
        code: its exit code.
        why: why there are no times, or why the model stays as it was.
        kept: whether it stays as it was, since nothing faster came out; `why` says whether the time ended before.
        error: the largest error, in what rounding explains.
        nodes, flops: the share of nodes, and of the operations of matrix products, that run by kernels.
        stages: seconds by stage of the first run.
        us: median microseconds of a call, by contender.
        ratios: by contender, how many times as long it takes as prism: lower quartile, median, upper quartile.
        dropped: what the command said of kernels that the numeric gate dropped: it may be a bug of an emitter's.
    """

    name: str
    first_s: float = 0.0
    second_s: float = 0.0
    code: int = 0
    why: str = ""
    kept: bool = False
    error: float | None = None
    nodes: float = 0.0
    flops: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    us: Mapping[str, float] = field(default_factory=dict)
    ratios: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    dropped: Sequence[str] = ()

    @property
    def ratio(self) -> float | None:
        """Against onnxruntime, which is what a user has where the model stays as it was."""
        return 1.0 if self.kept else self.ratios[STOCK][1] if STOCK in self.ratios else None


# In children: models are made there, so that one that crashes costs its own row.


def export(name: str, file: Path, opset: int, dynamic: bool) -> None:
    """Write the model as ONNX; where it is dynamic, the length of a sequence of tokens is free."""
    import torch

    model, inputs = made(MODELS[name], SIZES)
    free = {1: torch.export.Dim("seq", max=256)}
    dims = tuple(free if isinstance(kind, str) else None for kind in MODELS[name].inputs.values())
    # torch 2.13 does not export the fused attention of T5: what it writes out has a view of the wrong strides.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        program = torch.onnx.export(
            model,
            tuple(inputs.values()),
            dynamo=True,
            opset_version=opset,
            dynamic_shapes=(dims,) if dynamic else None,  # one parameter, that takes any number
            verbose=False,
        )
    assert program is not None
    program.save(str(file), external_data=False)


def session_call(file: Path, inputs: Sequence[np.ndarray], threads: int, optimised: bool = True) -> Callable[[], Any]:
    """The exported model in onnxruntime."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    feeds = dict(zip((i.name for i in session.get_inputs()), inputs, strict=True))
    return lambda: session.run(None, feeds)[0]


def module_call(folder: Path, inputs: Sequence[np.ndarray], threads: int) -> Callable[[], Any]:
    """The output folder's model: `model.py` of one in parts, the program's own module of one that was read whole."""
    import torch

    from prism.platforms.contenders import assembled
    from prism.report.folder import module_name

    given = [torch.from_numpy(x) for x in inputs]
    if (folder / "model.py").exists():
        call = assembled(folder / "model.py", threads)
        return lambda: call(given)[0].numpy()
    name = json.loads((folder / "report.json").read_text())["name"]
    spec = spec_from_file_location(name, folder / module_name(name))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    function = getattr(module, name)

    def first() -> Any:
        found = function(*given, threads=threads)
        return (found[0] if isinstance(found, tuple) else found).numpy()

    return first


def timed(name: str, file: Path, folder: Path, threads: int, compiled: bool) -> dict[str, Any]:
    """Time all contenders in turn: error, median microseconds, and quartiles of the rounds' ratios."""
    import numpy as np
    import onnx
    import torch

    from prism.instantiate.model_bench import off

    torch.set_num_threads(threads)
    theirs: dict[str, Callable[[], Any]] = {}
    if name in MODELS:
        model, inputs = made(MODELS[name], SIZES)
        tensors = tuple(inputs.values())
        arrays = [t.numpy() for t in tensors]
        theirs[EAGER] = lambda: model(*tensors)
        if compiled:
            fast = torch.compile(model, dynamic=False)
            theirs[COMPILED] = lambda: fast(*tensors)
    else:
        arrays = list(packaged.inputs(name, onnx.load(file)).values())
    calls: dict[str, Callable[[], Any]] = {
        PRISM: module_call(folder, arrays, threads),
        STOCK: session_call(file, arrays, threads),
        **theirs,
    }
    taken: dict[str, list[float]] = {who: [] for who in calls}
    with torch.inference_mode():
        plain = session_call(file, arrays, threads, optimised=False)()
        worst, allowed = off(calls[PRISM](), calls[STOCK](), plain)
        for call in calls.values():
            turn(call)
        for n in range(ROUNDS):
            order = list(calls)
            for who in order[n % len(order) :] + order[: n % len(order)]:
                taken[who].append(turn(calls[who]))
                time.sleep(SETTLE_S)
    ratios = {
        who: [float(q) for q in np.quantile(np.array(taken[who]) / np.array(taken[PRISM]), (0.25, 0.5, 0.75))]
        for who in calls
        if who != PRISM
    }
    us = {who: 1e6 * statistics.median(x) for who, x in taken.items()}
    return {"error": worst / allowed if allowed else worst, "us": us, "ratios": ratios}


def turn(call: Callable[[], Any]) -> float:
    """Seconds of a call, of as many as fit in a turn; threads wake in the first one, which is not heard."""
    call()
    begun, calls = time.perf_counter(), 0
    while time.perf_counter() - begun < ROUND_S:
        call()
        calls += 1
    return (time.perf_counter() - begun) / calls


# In the process that was called.


def child(*args: object, limit: float) -> dict[str, Any]:
    """Run a step of this script in a process of its own; what it answers on its last line.

    Raises:
        RuntimeError: it failed or took too long; the text says why.
    """
    try:
        ran = subprocess.run(
            [sys.executable, __file__, *map(str, args)], capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"took more than {limit:.0f} s") from None
    if ran.returncode:
        said = [line for line in ran.stderr.splitlines() if line.strip()]
        raise RuntimeError(said[-1][:300] if said else f"exit code {ran.returncode}")
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def command(file: Path, folder: Path, budget: str, threads: int) -> tuple[float, subprocess.CompletedProcess[str]]:
    """`prism optimize`, and its wall time."""
    line = [sys.executable, "-m", "prism", "optimize", str(file), "--target", "cpu", "--out", str(folder)]
    line += ["--budget", budget] if budget else []
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # with it a run begins by compiling prism to bytecode
    limit = seconds(budget) * OVERTIME + 60.0 if budget else None
    begun = time.perf_counter()
    try:
        ran = subprocess.run(line, capture_output=True, text=True, timeout=limit, check=False, env=environment)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"prism optimize --budget {budget} took more than {limit:.0f} s") from None
    return time.perf_counter() - begun, ran


def seconds(budget: str) -> float:
    """A budget as the command takes it: 90, 60s, 5m, 1h."""
    return float(budget.rstrip("smh")) * {"m": 60.0, "h": 3600.0}.get(budget[-1], 1.0)


def stages_of(said: str) -> dict[str, float]:
    """Seconds by kind of stage, from the lines that the command writes while it runs."""
    units = {"ms": 1e-3, "s": 1.0, "min": 60.0, "us": 1e-6, "µs": 1e-6}
    found: dict[str, float] = {}
    for line in said.splitlines():
        match = re.match(r"prism: (?:.*: )?([a-z ]+) ([\d.]+) (ms|s|min|us|µs)\b", line)
        if match:
            found[match[1]] = found.get(match[1], 0.0) + float(match[2]) * units[match[3]]
    return found


def dropped_in(said: str) -> list[str]:
    """What the command's lines say of kernels that the numeric gate dropped."""
    return [x for x in said.splitlines() if re.search(r"\b(passed|failed) the numeric gate", x)]


def shares(file: Path, folder: Path) -> tuple[float, float]:
    """The share of nodes, and of the operations of matrix products, that run by kernels: what `model.onnx` says."""
    import onnx

    inferred = onnx.shape_inference.infer_shapes(onnx.load(file))
    inside = {
        o
        for f in onnx.load(folder / "model.onnx").functions
        if f.domain == "ai.prism"
        for n in f.node
        for o in n.output
    }
    report = json.loads((folder / "report.json").read_text())
    count = sum(i["nodes"] for i in report["islands"] if not i["why"])
    work = {n.output[0]: operations(n, shapes_of(inferred)) for n in inferred.graph.node}
    total = sum(work.values())
    return count / report["nodes"], sum(v for o, v in work.items() if o in inside) / total if total else 0.0


def shapes_of(model: onnx.ModelProto) -> dict[str, list[int]]:
    """Shapes of values; a free dimension counts as this benchmark's length of a sequence."""
    found = {i.name: list(i.dims) for i in model.graph.initializer}
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        found[value.name] = [d.dim_value or SEQUENCE for d in value.type.tensor_type.shape.dim]
    return found


def operations(node: onnx.NodeProto, shapes: Mapping[str, Sequence[int]]) -> float:
    """Multiplications and additions of a matrix product or a convolution; of other operators none are counted."""
    out, x, w = (shapes.get(n) for n in (node.output[0], node.input[0] if node.input else "", (*node.input, "", "")[1]))
    if out is None or x is None or w is None:
        return 0.0
    match node.op_type:
        case "MatMul":
            return 2.0 * math.prod(out) * x[-1]
        case "Gemm":
            across = any(a.name == "transA" and a.i for a in node.attribute)
            return 2.0 * math.prod(out) * x[0 if across else 1]
        case "Conv":
            return 2.0 * math.prod(out) * math.prod(w[1:])
    return 0.0


def row_of(name: str, place: Path, args: argparse.Namespace) -> Row:
    """A model from its making to its times."""
    row = Row(name)
    file, folder = place / f"{name}.onnx", place / name
    try:
        child("export", name, file, args.opset, int(args.dynamic), limit=EXPORT_LIMIT_S)
    except RuntimeError as error:
        return replace(row, why=f"export: {error}")
    try:
        first, ran = command(file, folder, args.budget, args.threads)
        second, _ = command(file, folder, args.budget, args.threads)
    except RuntimeError as error:
        return replace(row, why=str(error))
    row = replace(
        row,
        first_s=first,
        second_s=second,
        code=ran.returncode,
        stages=stages_of(ran.stderr),
        dropped=dropped_in(ran.stderr),
    )
    if ran.returncode:
        lines = [x.strip() for x in ran.stderr.splitlines() if x.strip()]
        said = " ".join(lines[next((n for n, x in enumerate(lines) if x.startswith("prism: error")), -3) :])
        return replace(row, why=said[:400], kept=ran.returncode == 4)
    nodes, flops = shares(file, folder) if (folder / "model.py").exists() else (1.0, 1.0)
    try:
        found = child("time", name, file, folder, args.threads, int(args.compile), limit=TIME_LIMIT_S)
    except RuntimeError as error:
        return replace(row, nodes=nodes, flops=flops, why=f"timing: {error}")
    ratios = {who: (float(q[0]), float(q[1]), float(q[2])) for who, q in found["ratios"].items()}
    return replace(row, nodes=nodes, flops=flops, error=found["error"], us=found["us"], ratios=ratios)


def lines_of(row: Row) -> list[str]:
    """A row as text."""
    run = f"{row.name:9} run {row.first_s:6.1f} s  again {row.second_s:5.1f} s  exit {row.code}"
    if row.ratios:
        against = [f"{who} {q[1]:.2f}x ({q[0]:.2f}-{q[2]:.2f})" for who, q in row.ratios.items()]
        error = "" if row.error is None else f"  error {row.error:.2g} of the gate"
        run += f"  nodes {row.nodes:.0%}  flops {row.flops:.0%}{error}  against {', '.join(against)}"
    elif row.kept:
        run += "  1.00x: nothing faster came out, the model stays as it was"
    found = [run]
    if row.why:
        found.append(f"{'':9} {row.why}")
    found += [f"{'':9} {x}" for x in row.dropped]
    if row.us:
        found.append(f"{'':9} " + "  ".join(f"{who} {us:,.0f} us" for who, us in row.us.items()))
    if row.stages:
        parts = sorted(row.stages.items(), key=lambda x: -x[1])
        found.append(f"{'':9} " + "  ".join(f"{stage} {t:.1f} s" for stage, t in parts if t >= 0.1))
    return found


def last_line(rows: Sequence[Row]) -> str:
    """The mean of the models that ended."""
    ratios = [r.ratio for r in rows if r.ratio is not None]
    kept, failed = sum(r.kept for r in rows), sum(r.ratio is None for r in rows)
    mean = f"{statistics.geometric_mean(ratios):.2f}x" if ratios else "none"
    return f"geometric mean against {STOCK}: {mean} of {len(ratios)} models ({kept} stay as they were, {failed} failed)"


def read_specimens(args: argparse.Namespace) -> int:
    """Read the classes of `model_zoo`, exported, or what packages hold; 1 where one is refused or read as another."""
    every = packaged.files() if args.packaged else [n for n, s in SPECIMENS.items() if s.cache or not args.past]
    names = [n for n in args.only.split(",") if n] or list(every)
    kinds: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="prism-specimens-") as spare:
        place = args.out or Path(spare)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            file = place / f"{name}.onnx"
            how = [name, file, args.opset, args.exporter, int(args.dynamic), int(args.past)]
            try:
                # Making a model takes transformers and torch; reading a file does not, and beginning takes longer.
                found = (
                    packaged_specimen(name, file) if args.packaged else child("specimen", *how, limit=EXPORT_LIMIT_S)
                )
            except Exception as error:
                found = {"kind": "failed", "lines": [f"{name:30} failed: {type(error).__name__}: {error}"]}
            kinds[found["kind"]] += 1
            print("\n".join(found["lines"]), flush=True)
    print(", ".join(f"{many} {kind}" for kind, many in kinds.items()))
    return int(kinds["failed"] > 0)


def specimen(name: str, file: Path, opset: int, exporter: str, dynamic: bool, past: bool) -> dict[str, Any]:
    """Export and read one."""
    try:
        model_zoo.export(name, file, opset, exporter, dynamic, past)
    except Exception as error:  # of a wide range of types: torch's own, of what it does not export
        why = " ".join(str(error).split())[:200]
        return {"kind": "not exported", "lines": [f"{name:30} not exported: {type(error).__name__}: {why}"]}
    return as_read(file, {k: t.numpy() for k, t in made(SPECIMENS[name], past=past)[1].items()})


def packaged_specimen(name: str, file: Path) -> dict[str, Any]:
    """Read one that a package holds."""
    import onnx

    packaged.write(name, file)
    return as_read(file, packaged.inputs(name, onnx.load(file)))


def as_read(file: Path, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What came of reading a file, as the children answer it."""
    from benchmarks.reading import read

    found = read(file, inputs)
    return {"kind": "failed" if found.failed else found.kind, "lines": found.lines()}


def main(argv: Sequence[str]) -> int:
    """The command; exit code 1 where a model failed."""
    match list(argv):
        case ["specimen", name, file, opset, exporter, dynamic, past]:
            warnings.simplefilter("ignore")
            print(json.dumps(specimen(name, Path(file), int(opset), exporter, dynamic == "1", past == "1")))
            return 0
        case ["export", name, file, opset, dynamic]:
            warnings.simplefilter("ignore")  # torch's own
            if name in MODELS:
                export(name, Path(file), int(opset), dynamic == "1")
            else:
                packaged.write(name, Path(file))
            print("{}")
            return 0
        case ["time", name, file, folder, threads, compiled]:
            warnings.simplefilter("ignore")
            print(json.dumps(timed(name, Path(file), Path(folder), int(threads), compiled == "1")))
            return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"names, of {', '.join(MODELS)}")
    parser.add_argument("--budget", default="120s", help="of each first run, as the command takes it; empty for none")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--opset", type=int, default=18)
    parser.add_argument("--dynamic", action="store_true", help="sequences of any length")
    parser.add_argument("--compile", action="store_true", help="time torch.compile as well")
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    parser.add_argument("--out", type=Path, help="keep models and folders here")
    parser.add_argument("--read", action="store_true", help="read tiny models of many classes, and optimise none")
    parser.add_argument("--packaged", action="store_true", help="models that come inside installed packages")
    parser.add_argument("--past", action="store_true", help="with --read: steps of decoding, with a cache")
    parser.add_argument("--exporter", choices=("dynamo", "legacy"), default="dynamo", help="with --read: torch's")
    args = parser.parse_args(argv)
    if args.read:
        return read_specimens(args)
    known = packaged.nets() if args.packaged else list(MODELS)
    names = [n for n in args.only.split(",") if n] or known
    unknown = [n for n in names if n not in known]
    needed = ("onnxruntime",) if args.packaged else ("transformers", "onnxscript", "onnxruntime")
    missing = [n for n in needed if find_spec(n) is None]
    if unknown or missing:
        parser.error(f"no model {unknown[0]!r}" if unknown else f"{missing[0]} is missing: pip install {missing[0]}")
    rows = []
    with tempfile.TemporaryDirectory(prefix="prism-models-") as spare:
        place = args.out or Path(spare)
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            try:
                row = row_of(name, place, args)
            except Exception as error:  # a row that says so is what the next model should not be lost for
                row = Row(name, why=f"{type(error).__name__}: {error}")
            rows.append(row)
            print("\n".join(lines_of(row)), flush=True)
            if args.json:
                args.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    print(last_line(rows))
    return int(any(r.ratio is None for r in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
