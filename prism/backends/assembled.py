"""The Python of a whole model: islands run by their modules, what stays by onnxruntime, in an order that is fixed.

The text is self-contained: of other packages it imports numpy and onnxruntime, and torch where it is given its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import sympy

from prism.backends.ranged import condition

_GIVEN = '''
def _given(args, kwargs):
    """What the model is called with, by name."""
    if len(args) > len(INPUTS):
        raise ValueError(f"{len(args)} inputs were given, and the model has {len(INPUTS)}: {', '.join(INPUTS)}")
    given = dict(zip(INPUTS, args))
    for name, value in kwargs.items():
        if name not in INPUTS or name in given:
            why = "given twice" if name in given else f"none of the model's: {', '.join(INPUTS)}"
            raise ValueError(f"the input {name} is {why}")
        given[name] = value
    missing = [name for name in INPUTS if name not in given]
    if missing:
        raise ValueError(f"the input {missing[0]} is missing; the model takes {', '.join(INPUTS)}")
    return given

'''

RUNTIME = '''
HERE = Path(__file__).resolve().parent


def load(threads=None):
    """The model as a function; sessions and modules are loaded once.

    Args:
        threads: that it runs on; by default OMP_NUM_THREADS, or the processors that this process may use.
    """
    return Model(threads or _processors())


class Model:
    """The model. Call it with its inputs, by place or by name, as arrays of numpy or tensors of torch.

    It returns what the model does: one array, or a tuple of several; of torch where an input is.
    """

    def __init__(self, threads):
        self.threads = threads
        self._steps = []
        # Islands that follow each other are one step.
        groups = []
        for step in STEPS:
            if groups and "function" in step and "function" in groups[-1][-1]:
                groups[-1].append(step)
            else:
                groups.append([step])
        left = {name: n for n, group in enumerate(groups) for step in group for name in step["takes"]}
        for n, group in enumerate(groups):
            made = {name for step in group for name in step["gives"]}
            takes = list(dict.fromkeys(name for step in group for name in step["takes"] if name not in made))
            gives = [x for step in group for x in step["gives"] if x in OUTPUTS or left.get(x, n) > n]
            if len(group) > 1:
                run = _Together(group, threads, takes, gives)
            elif "function" in group[0]:
                run, gives = _island(group[0], threads)[0], group[0]["gives"]
            else:
                run, gives = _session(group[0], threads), group[0]["gives"]
            done = [name for name in takes if left[name] == n and name not in OUTPUTS]
            self._steps.append((run, takes, gives, done))

    def __call__(self, *args, **kwargs):
        given = _given(args, kwargs)
        torch_like = any(hasattr(value, "data_ptr") for value in given.values())
        found = self._found({name: _array(name, value) for name, value in given.items()})
        if torch_like:
            import torch

            found = [torch.from_numpy(y) if isinstance(y, np.ndarray) and y.dtype != object else y for y in found]
        return found[0] if len(found) == 1 else tuple(found)

    def _found(self, given):
        values = dict(given)
        for run, takes, gives, done in self._steps:
            arrays = [values[name] for name in takes]
            try:
                results = run(arrays)
            except ValueError:
                if all(getattr(x, "size", 1) for x in arrays):
                    raise
                # Kernels are for lengths from 1 on; the model as it was given takes what is empty, too.
                stock = {"file": "model.onnx", "takes": INPUTS, "gives": OUTPUTS}
                return _session(stock, self.threads)([given[name] for name in INPUTS])
            for name in done:
                del values[name]
            values.update(zip(gives, results))
        return [values[name] for name in OUTPUTS]


<given>
def _processors():
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if given.isdigit() and int(given) > 0:
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _array(name, value):
    """An input as numpy's; nothing is copied that lies in memory as it should."""
    if getattr(value, "requires_grad", False):
        import torch

        if torch.is_grad_enabled():
            raise ValueError(
                f"{name} requires a gradient, which this model does not compute: "
                "detach it, or call under torch.no_grad()"
            )
    return value.detach().cpu().numpy() if hasattr(value, "data_ptr") else np.asarray(value)


def _session(step, threads):
    """What stays as it is, as a function of arrays."""
    try:
        import onnxruntime as ort
    except ImportError:
        raise ImportError(
            "onnxruntime is missing, which runs the operators that no kernel was made for: pip install onnxruntime"
        ) from None
    options = ort.SessionOptions()
    options.intra_op_num_threads = min(threads, step.get("threads", threads))
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Its threads would go on looking for work while the next step's threads need the processors.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = ort.InferenceSession(str(HERE / step["file"]), options, providers=["CPUExecutionProvider"])
    takes, gives = step["takes"], step["gives"]
    return lambda values: session.run(gives, dict(zip(takes, values)))


_MODULES = {}
_MEMORY = threading.local()


def _island(step, threads):
    """An island's kernels as a function of arrays, with the weights of this place in the model; and their module."""
    path = HERE / step["file"]
    if path not in _MODULES:
        spec = importlib.util.spec_from_file_location(f"{__name__}_{path.stem}", path)
        module = _MODULES[path] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    module = _MODULES[path]
    module._SHARED[:] = [_MEMORY]  # islands run one after another: what one of them has stored, the next may overwrite
    function = getattr(module, step["function"])
    order = step["weights"]
    held = module._read_weights(HERE / step["weights_file"]) if order else {}
    weights = [held[name] for name in order]
    module.hold(weights)
    single = len(step["gives"]) == 1

    def run(values):
        found = function(*values, *weights, threads=threads)
        return (found,) if single else found

    return run, module
'''.replace("<given>\n", _GIVEN.lstrip("\n") + "\n")

SEVERAL = '''

class _Together:
    """Islands that follow each other as a function of arrays: all of their launches are one native call.

    What is checked and where everything lies is found once for inputs of the same shapes, a thread for itself. What the
    islands exchange stays where it is for the next call.
    """

    def __init__(self, steps, threads, takes, gives):
        self._steps, self._threads, self._takes, self._gives = steps, threads, takes, gives
        self._islands = [_island(step, threads) for step in steps]
        library, _ = self._islands[0][1].compile_source(HERE / "together.cpp", {})
        self._native = ctypes.CDLL(str(library)).together
        self._native.argtypes = [ctypes.c_int64, *[ctypes.c_void_p] * 3, ctypes.c_int]
        self._native.restype = None
        self._own = threading.local()

    def __call__(self, values):
        values = [v if v.flags.c_contiguous else v.copy(order="C") for v in values]
        key = [(v.shape, v.dtype) for v in values]
        known = self._own.__dict__.get("plan")
        if known is None or known[0] != key:
            known = self._own.plan = key, self._planned(values)
        given, made, places, results, arguments, _ = known[1]
        arrays = [np.empty(shape, dtype) for shape, dtype in made]
        address = self._islands[0][1]._address
        at = [address(values[n]) for n in given]
        at += [address(y) for y in arrays]
        for addresses, n, where in places:
            addresses[n] = at[where]
        self._native(*arguments, self._threads)
        return [
            arrays[n] if kind == "made" else values[n] if kind == "given" else constant.copy()
            for kind, n, constant in results
        ]

    def _planned(self, values):
        """The islands' own calls, noted and not made: what is given, what is made, and where either goes."""
        known, calls = self._noted(values)
        if any(call[6] is not None and call[6][2] is not _MEMORY.memory for call in calls):
            known, calls = self._noted(values)  # a later one needed more memory, which is there now for all
        computed = {id(t) for call in calls for t in call[5]}
        given = {id(v): n for n, v in enumerate(values)}
        read = [n for n, v in enumerate(values) if id(v) in computed]
        made, where, results = [], {id(values[n]): place for place, n in enumerate(read)}, []
        for name in self._gives:
            y = known[name]
            if id(y) in given:
                results.append(("given", given[id(y)], None))
            elif id(y) not in computed:
                results.append(("constant", 0, y))
            else:
                if id(y) not in where:
                    where[id(y)] = len(read) + len(made)
                    made.append((y.shape, y.dtype))
                results.append(("made", where[id(y)] - len(read), None))
        places = []
        for call in calls:
            for n, t in enumerate(call[5]):
                if id(t) in where:
                    places.append((call[4], n, where[id(t)]))
        # What comes and goes with a call is not kept.
        for call in calls:
            call[5][:] = [t for t in call[5] if id(t) not in where]
        pointers = ctypes.c_void_p * len(calls)
        runs = pointers(*[ctypes.c_void_p.from_buffer(call[0]).value for call in calls])
        lengths = pointers(*[call[2] and ctypes.addressof(call[2]) for call in calls])
        arguments = len(calls), runs, pointers(*[call[1] for call in calls]), lengths
        return read, made, places, results, arguments, calls

    def _noted(self, values):
        known, calls = dict(zip(self._takes, values)), []
        for step, (island, module) in zip(self._steps, self._islands):
            module._OWN.later = calls
            try:
                known.update(zip(step["gives"], island([known[name] for name in step["takes"]])))
            finally:
                del module._OWN.later
        return known, calls
'''

RANGED = '''
HERE = Path(__file__).resolve().parent


def load(threads=None):
    """The model as a function; what runs at some lengths is loaded when it is first called at one of them.

    Args:
        threads: that it runs on; by default as many as each of the models in here says.
    """
    return Model(threads)


class Model:
    """The model. Call it with its inputs, by place or by name, as arrays of numpy or tensors of torch.

    It returns what the model does: one array, or a tuple of several; of torch where an input is.
    """

    def __init__(self, threads):
        self.threads = threads
        self._models = {}

    def __call__(self, *args, **kwargs):
        given = _given(args, kwargs)
        try:
            lengths = {name: int(given[source].shape[axis]) for name, (source, axis) in LENGTHS.items()}
        except (AttributeError, IndexError):
            lengths = None  # the model says what is wrong
        return self._model(FILES[0] if lengths is None else FILES[_cell(**lengths)])(**given)

    def _model(self, file):
        if file not in self._models:
            name = f"{__name__}_{file.replace('/', '_').partition('.')[0]}"
            spec = importlib.util.spec_from_file_location(name, HERE / file)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            self._models[file] = module.load(self.threads)
        return self._models[file]


''' + _GIVEN.lstrip("\n")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the model."""

    file: str  # the model of what stays, or the island's module; in the folder
    takes: tuple[str, ...]  # names of values
    gives: tuple[str, ...]  # names of values
    function: str = ""  # the island's function; empty where the step is no island
    weights: tuple[str, ...] = ()  # the names, in the weights file, of what the function takes after its data
    weights_file: str = ""  # where they are
    threads: int = 0  # what stays runs on so many at most; 0 for as many as there are


TOGETHER = """// All launches of islands that follow each other, in one call; written by prism.
#include <cstdint>

using Run = void (*)(void* const* tensors, const int64_t* lengths, int threads);

extern "C" void together(
    int64_t many, void* const* runs, void* const* const* tensors, const int64_t* const* lengths, int threads
) {
    for (int64_t n = 0; n < many; ++n) ((Run)runs[n])(tensors[n], lengths[n], threads);
}
"""


def consecutive(steps: Sequence[Step]) -> bool:
    """Whether islands follow each other: the module then compiles `TOGETHER`, which is `together.cpp` beside it."""
    return any(a.function and b.function for a, b in pairwise(steps))


def assembled_text(name: str, inputs: Sequence[str], outputs: Sequence[str], steps: Sequence[Step]) -> str:
    """The module of a whole model, with its steps in order."""
    said = name.replace("\\", "\\\\").replace('"""', "'''")
    taken, returned = (
        ", ".join(f"{c}{n}" for n in range(many)) for c, many in (("x", len(inputs)), ("y", len(outputs)))
    )
    lines = [
        f'"""{said}: islands of it run by kernels, the rest by onnxruntime; written by prism.',
        "",
        "    from model import load",
        "",
        "    model = load()",
        f"    {returned} = model({taken})",
        '"""',
        "",
        "import ctypes",
        "import importlib.util",
        "import os",
        "import threading",
        "from pathlib import Path",
        "",
        "import numpy as np",
        "",
        f"INPUTS = {tuple(inputs)!r}",
        f"OUTPUTS = {tuple(outputs)!r}",
        "STEPS = (",
    ]
    for s in steps:
        entry: dict[str, object] = {"file": s.file, "takes": s.takes, "gives": s.gives}
        if s.function:
            entry |= {"function": s.function, "weights": s.weights, "weights_file": s.weights_file}
        if s.threads:
            entry |= {"threads": s.threads}
        lines += ["    {", *(f"        {key!r}: {value!r}," for key, value in entry.items()), "    },"]
    lines += [")", ""]
    return "\n".join(lines) + RUNTIME + (SEVERAL if consecutive(steps) else "")


def ranged_model_text(
    name: str,
    inputs: Sequence[str],
    lengths: Mapping[str, tuple[str, int]],
    ranges: Mapping[str, tuple[int, int]],
    ways: Sequence[tuple[sympy.Basic, str, str]],
    outside: str,
) -> str:
    """The module of a model of which several assembled ones are there, each for some lengths.

    Args:
        name: the model's.
        inputs: the names of what it takes.
        lengths: of each dimension that has a range, the input and the place of the dimension in its shape.
        ranges: the least and the largest length.
        ways: where each module is for, the same to read, and its file; the last takes what is left.
        outside: the module for other lengths; empty where they are refused.
    """
    said = name.replace("\\", "\\\\").replace('"""', "'''")
    within = " and ".join(f"{low} <= {n} <= {high}" for n, (low, high) in sorted(ranges.items()))
    files = [file for _, _, file in ways] + ([outside] if outside else [])
    parameters = ", ".join(sorted(ranges))
    lines = [
        f'"""{said} for {within}: models of which parts run by kernels, chosen by the lengths of the inputs.',
        "",
        "    from model import load",
        "",
        "    model = load()",
        "",
        "Written by prism.",
        '"""',
        "",
        "import importlib.util",
        "from pathlib import Path",
        "",
        f"INPUTS = {tuple(inputs)!r}",
        "# Of each length, the input and the dimension of it.",
        f"LENGTHS = {dict(sorted(lengths.items()))!r}",
        "FILES = (",
        *(f"    {file!r}," for file in files),
        ")",
        "",
        "",
        f"def _cell({parameters}):",
        '    """Which of the models is for these lengths."""',
        f"    if not ({within}):",
    ]
    if outside:
        lines.append(f"        return {len(ways)}")
    else:
        shown = ", ".join(f"{n}={{{n}}}" for n in sorted(ranges))
        lines += [
            f'        raise ValueError(f"{shown}: the model was made for {within}")',
        ]
    for n, (predicate, text, _) in enumerate(ways[:-1]):
        lines += [f"    if {condition(predicate)}:  # {text}", f"        return {n}"]
    lines += [f"    return {len(ways) - 1}", ""]
    return "\n".join(lines) + "\n" + RANGED
