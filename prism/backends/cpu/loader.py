"""The Python of an emitted module: it checks arguments, compiles for a configuration, and calls the C++.

The text is self-contained: `support.py` is pasted into it, and so is the code below; of other packages it imports numpy
and, when it is given torch tensors or reads a weights file, torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from prism.backends.host import (
    STATED,
    STATED_NAMES,
    STATED_OPTION,
    TORCH_OP_NAMES,
    Launcher,
    Signature,
    name_tensors,
    tuple_of,
    write_configs,
)
from prism.backends.lifetimes import shared_places
from prism.backends.source import PythonIntegers, Writer
from prism.backends.tile import Adds, TileModule, identifier, scalars
from prism.program.extents import mul, product
from prism.program.returned import Returned
from prism.sgraph.nodes import SGraph

_SIZES = PythonIntegers("_cdiv")
DIRECT_TENSORS = 64
"""Tensors and buffers of a call that may do without the interpreter, at most: `MOST` of direct.hpp."""
RUNTIME = '''
_DTYPES = {
    "float64": ("float64", np.float64),
    "float32": ("float32", np.float32),
    "float16": ("float16", np.float16),
    "bfloat16": ("bfloat16", np.uint16),
    "int64": ("int64", np.int64),
    "int32": ("int32", np.int32),
    "int16": ("int16", np.int16),
    "int8": ("int8", np.int8),
    "uint8": ("uint8", np.uint8),
    "bool": ("bool", np.bool_),
}
_LOADED = {}
_LIBRARIES = []
_HELD = []
_HELD_AT = set()
_PLACES = {}
_SPELLED = {}
_MADE = {}
_OWN = threading.local()
# Instead of the thread's own memory of this module: that of a model, which runs several modules one after another.
_SHARED = []
_TORCH = {}


def _is_torch(tensor):
    return not isinstance(tensor, np.ndarray)


def _dtype(dtype):
    """A data type's name."""
    if dtype not in _SPELLED:
        _SPELLED[dtype] = str(dtype).removeprefix("torch.")
    return _SPELLED[dtype]


def _unreadable(name, tensor):
    """Refuse a tensor of torch that these kernels cannot read, or of which they have no gradient."""
    if not tensor.is_cpu:
        raise ValueError(f"{name} must be on the CPU, not on {tensor.device}")
    import torch

    if tensor.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} requires a gradient, which these kernels do not compute: detach it, call under "
            "torch.no_grad(), or let prism differentiate: torch.compile(model, backend='prism')"
        )


def _without_memory(cause=None):
    raise ValueError(
        "a tensor has no memory that kernels can read: torch traces or transforms the call (torch.func, torch.export, "
        "FakeTensorMode), or it is of no dense kind; call torch_op() of this module there"
    ) from cause


def _expect(name, tensor, shape, dtype):
    """Refuse an argument of another rank, data type or shape; None stands for any length."""
    if not isinstance(tensor, np.ndarray):
        try:
            readable = tensor.is_cpu and not tensor.requires_grad
        except AttributeError:
            kind = type(tensor).__name__
            raise ValueError(f"{name} must be a numpy array or a torch tensor, not {kind}") from None
        if not readable:
            _unreadable(name, tensor)
    given = _SPELLED.get(tensor.dtype) or _dtype(tensor.dtype)
    # numpy has no bfloat16: ml_dtypes' is taken, and its bits as uint16.
    if given != dtype and not (dtype == "bfloat16" and given == "uint16"):
        raise ValueError(f"{name} must be {dtype}, not {given}")
    found = tensor.shape
    if found == shape:
        return
    fits = len(found) == len(shape)
    if fits:
        for n, m in zip(shape, found):
            if n is not None and n != m:
                fits = False
    if not fits:
        wanted = ", ".join("*" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must have the shape ({wanted}), not {tuple(found)}")


def _dense(tensor):
    """The tensor, contiguous."""
    if not isinstance(tensor, np.ndarray):
        return tensor if tensor.is_contiguous() else tensor.contiguous()
    return tensor if tensor.flags.c_contiguous else np.ascontiguousarray(tensor)


def _cdiv(a, b):
    return -(-a // b)


def _address(tensor):
    if _is_torch(tensor):
        return tensor.data_ptr()
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(tensor))
    except (TypeError, ValueError, BufferError):  # read-only, empty, or of a type that buffers do not have: slower
        return tensor.__array_interface__["data"][0]


def _apart(results, arguments):
    """Refuse results in the memory of an argument, or of each other: they are written while arguments are read.

    Arguments that are not contiguous are copied before.
    """
    taken = [(name, _address(t), t.nbytes) for name, t in arguments.items() if _dense(t) is t]
    for name, t in results.items():
        first, last = _address(t), _address(t) + t.nbytes
        for other, at, size in taken:
            if first < at + size and at < last:
                raise ValueError(f"{name} overlaps {other} in memory, which is read while {name} is written")
        taken.append((name, first, t.nbytes))


def _remember(array):
    """An array of numpy that stays where it is while it lives; asking where takes longer than checking all of it."""
    key = id(array)
    _PLACES[key] = weakref.ref(array, lambda _: _PLACES.pop(key, None)), _address(array)
    return array


def _empty(like, shape, dtype):
    """A new tensor, of torch where `like` is, else of numpy."""
    if not isinstance(like, np.ndarray):
        if not _TORCH:
            import torch

            # At once: another thread takes what is there for all of it.
            _TORCH.update({name: getattr(torch, name) for name in (*_DTYPES, "empty_like")})
        wanted = _TORCH[dtype]
        if like.dtype is not wanted:
            return like.new_empty(shape, dtype=wanted)
        # It has the order of dimensions of what it is like, where that is none of a tensor's own.
        return _TORCH["empty_like"](like) if like.shape == shape and like.is_contiguous() else like.new_empty(shape)
    if dtype == "bfloat16" and str(like.dtype) == "bfloat16":
        return np.empty(shape, like.dtype)
    if dtype == "bfloat16":
        try:
            import ml_dtypes

            return np.empty(shape, ml_dtypes.bfloat16)
        except ImportError:
            pass
    return np.empty(shape, _DTYPES[dtype][1])


def _arena(sizes, places):
    """The addresses of what kernels exchange, in memory that is kept for the next call of the same thread.

    `sizes` are bytes, place by place, and `places` says in which of them each buffer is.
    """
    kept, whose = _OWN.__dict__.get("arena"), _SHARED[0] if _SHARED else _OWN
    memory = whose.__dict__.get("memory")
    if kept is not None and kept[0] == sizes and kept[2] is memory:
        return kept[1]
    starts = [0]
    for size in sizes:
        starts.append(starts[-1] + (size + 63) // 64 * 64)
    if memory is None or memory.size < starts[-1] + 64:
        memory = whose.memory = np.empty(starts[-1] + 64, np.uint8)
    first = (_address(memory) + 63) // 64 * 64
    _OWN.arena = sizes, [first + starts[n] for n in places], memory
    return _OWN.arena[1]


def choose():
    """The tuned configuration."""
    entries = CONFIGS.get("cpu") or next(iter(CONFIGS.values()), None)
    if not entries:
        raise ValueError("this module has no tuned configuration: pass config=")
    return entries[0]


_VALUES = itemgetter(*SYMBOLS) if SYMBOLS else len


def load(config):
    """The compiled function of a configuration: run(tensors, lengths, threads)."""
    symbols = config["symbols"]
    key = _VALUES(symbols)
    found = _LOADED.get(key)
    if found is None:
        constants = {constant: symbols[name] for name, constant in SYMBOLS.items()}
        library, known = compile_source(Path(__file__).with_name(SOURCE), constants)
        try:
            loaded = ctypes.CDLL(str(library))
        except OSError:
            if not known:
                raise
            library.unlink(missing_ok=True)  # damaged, as by a disk that was full
            loaded = ctypes.CDLL(str(compile_source(Path(__file__).with_name(SOURCE), constants)[0]))
        function = loaded.run
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        function.restype = None
        function.library = loaded
        loaded.hold.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        loaded.forget.argtypes = [ctypes.c_void_p]
        loaded.hold.restype = loaded.forget.restype = None
        if hasattr(loaded, "prepare"):
            loaded.prepare.argtypes, loaded.prepare.restype = function.argtypes, None
        _LIBRARIES.append(loaded)
        _hold_by(loaded, [tensor for kept in _HELD if (tensor := kept()) is not None])
        found = _LOADED[key] = function
    return found


def hold(tensors):
    """Say that these, a model's weights, stay as they are: what is made of them alone is kept, while they live."""
    _HELD.extend(weakref.ref(tensor) for tensor in tensors)
    for tensor in tensors:
        if _dense(tensor) is tensor:
            if isinstance(tensor, np.ndarray):
                _remember(tensor)
            at = _address(tensor)
            _HELD_AT.add(at)
            weakref.finalize(tensor, _let_go, at).atexit = False
    for library in _LIBRARIES:
        _hold_by(library, tensors)


def _let_go(at):
    """Forget what was at an address, and what was made of it."""
    _HELD_AT.discard(at)
    for key in [key for key in _MADE if at in key[1]]:
        _MADE.pop(key, None)


def _hold_by(library, tensors):
    for tensor in tensors:
        if tensor.ndim > 1 and tensor.nbytes and _dense(tensor) is tensor:
            library.hold(_address(tensor), tensor.nbytes)
            # Whatever is at this address then is something else.
            weakref.finalize(tensor, library.forget, _address(tensor)).atexit = False


def default_threads():
    """OMP_NUM_THREADS, or the processors that this process may use."""
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    if given.isdigit() and int(given) > 0:
        return int(given)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _call(config, tensors, buffers, lengths, threads, fixed=(), kept_bytes=()):
    """One call of the compiled function; buffers are at these addresses, and tensors are made contiguous.

    What hangs on the weights at the places `fixed` alone takes `kept_bytes`, buffer by buffer, and outlives the call.
    Where this thread's calls are collected, to be one with those of other modules, it is noted and not made.
    """
    run, many, kept = load(config), len(tensors) + len(buffers) + len(kept_bytes), _OWN.__dict__
    later, own = kept.get("later"), kept.get(many)
    if own is None or later is not None:
        made = (ctypes.c_void_p * many)()
        own = made, ctypes.addressof(made), (ctypes.c_int64 * len(lengths))() if lengths else None
        if later is None:
            kept[many] = own
    addresses, begin, sizes = own
    if lengths:
        sizes[:] = lengths
    if buffers:
        addresses[len(tensors) : len(tensors) + len(buffers)] = buffers
    for n, t in enumerate(tensors):
        if isinstance(t, np.ndarray):
            known = _PLACES.get(id(t))
            if known is not None and known[0]() is t:
                addresses[n] = known[1]
                continue
            if not t.flags.c_contiguous:
                t = tensors[n] = np.ascontiguousarray(t)
            addresses[n] = _address(t)
        else:
            try:
                if not t.is_contiguous() or t.is_neg():
                    t = tensors[n] = t.resolve_neg().contiguous()
                addresses[n] = at = t.data_ptr()
            except RuntimeError as error:
                _without_memory(error)
            if not at and t.numel():
                _without_memory()
    prepared = None
    if fixed:
        prepared = _prepared(run, addresses, begin, sizes, threads or _THREADS, fixed, kept_bytes)
        addresses[many - len(kept_bytes) :] = prepared[0]
    if later is None:
        run(begin, sizes, threads or _THREADS)
    else:  # with all that has to live until then
        later.append((run, begin, sizes, threads or _THREADS, addresses, tensors, kept.get("arena"), prepared))


def _prepared(run, addresses, begin, sizes, threads, fixed, kept_bytes):
    """Where what hangs on weights alone is, and its memory: made once of weights that are held, of others anew."""
    key = id(run), tuple([addresses[n] for n in fixed])
    found = _MADE.get(key)
    if found is not None:
        return found
    starts = [0]
    for size in kept_bytes:
        starts.append(starts[-1] + (size + 63) // 64 * 64)
    memory = np.empty(starts[-1] + 64, np.uint8)
    first = (_address(memory) + 63) // 64 * 64
    places = [first + start for start in starts[:-1]]
    addresses[len(addresses) - len(places) :] = places
    run.library.prepare(begin, sizes, threads)
    found = places, memory
    if _HELD_AT.issuperset(key[1]):
        for place, size in zip(places, kept_bytes):
            run.library.hold(place, size)
            weakref.finalize(memory, run.library.forget, place).atexit = False
        _MADE[key] = found
    return found


_THREADS = default_threads()
'''

DIRECT = '''
_PYTHON = """
PyObject_GetAttr PyObject_CallOneArg PyObject_Call PyObject_Type PyObject_RichCompareBool PyLong_AsVoidPtr PyTuple_New
PyTuple_SetItem PyTuple_GetItem PyTuple_Size Py_IncRef Py_DecRef PyErr_Clear PyObject_GetBuffer PyBuffer_Release
PyEval_SaveThread PyEval_RestoreThread PyCFunction_NewEx PyCapsule_New PyCapsule_GetPointer
""".split()
# How often a thread makes a direct call for other arguments than its last one is for, which takes ten calls' time.
_LEARNED = 32
_MAKERS = []


def _learn(config, given, made, buffers, lengths, threads):
    """Calls like this one go from the arguments to the compiled code by C++ (direct-call.cpp)."""
    kept, of_numpy = _OWN.__dict__, [isinstance(t, np.ndarray) for t in given]
    if "later" in kept or any(of_numpy) != all(of_numpy):
        return
    shapes = tuple([t.shape for t in given])
    kept["learned"] = 1 + kept.get("learned", 0)
    if kept["learned"] > _LEARNED:
        return
    if not _MAKERS:
        source = Path(__file__).with_name("direct-call.cpp")
        try:
            library = ctypes.PyDLL(str(compile_source(source, {}, folders=products_folders(source))[0]))
        except (OSError, CompilerError):
            library = None
        functions = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in _PYTHON]
        if library is not None:
            library.prism_direct.argtypes = [
                ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
            ]
            library.prism_direct.restype = ctypes.py_object
        # At once, and when it may be called: another thread may be as far.
        _MAKERS[:] = library, (ctypes.c_void_p * len(functions))(*functions)
    library, functions = _MAKERS
    if library is None:
        return
    held = (ctypes.c_void_p * max(1, len(buffers)))(*buffers), (ctypes.c_int64 * max(1, len(lengths)))(*lengths)
    if of_numpy[0]:
        kind = True, np.ndarray, None, "dtype", "shape", *[None] * 7
        makers = [(None, np.empty, (y.shape, y.dtype), {}) for y in made]
    else:
        torch = sys.modules["torch"]
        names = "dtype", "shape", "is_cpu", "requires_grad"
        methods = torch.Tensor.is_neg, torch.Tensor.is_contiguous, torch.Tensor.data_ptr
        functions_of = *methods, torch.empty_like, torch.is_grad_enabled
        kind = False, torch.Tensor, torch.nn.Parameter, *names, *functions_of
        makers = []
        for y in made:
            alike = [n for n, x in enumerate(given) if x.shape == y.shape and x.dtype is y.dtype]
            how = {"dtype": y.dtype, "device": y.device}
            makers.append((alike[0] if alike else None, torch.empty, (tuple(y.shape),), how))
    of_one = tuple([0 not in t.shape and sum(t.shape) == len(t.shape) for t in given])
    own = (), tuple([t.dtype for t in given]), shapes, of_one, tuple(makers), len(buffers)
    spec = None, True, *kind, *own, held, kept.get("arena")
    run = ctypes.cast(load(config), ctypes.c_void_p)
    kept["direct", threads] = library.prism_direct(functions, spec, run, *held, threads or _THREADS)
'''

CONSTANT = '''
def _constant(like, values, shape, dtype):
    """A new tensor of these values, of torch where `like` is: one for all elements, or one for each."""
    made = _empty(like, shape, dtype)
    if not values:
        return made
    if _is_torch(like):
        import torch

        return made.copy_(torch.tensor(values, dtype=made.dtype).reshape(shape if len(values) > 1 else ()))
    numbers = np.array(values if len(values) > 1 else values[0])
    if dtype == "bfloat16" and made.dtype == np.uint16:
        numbers = (numbers.astype(np.float32).view(np.uint32) + 0x8000 >> 16).astype(np.uint16)
    made[...] = numbers.reshape(shape if len(values) > 1 else ())
    return made
'''

WEIGHT = '''
_WEIGHTS = {}
_VIEWS = {}
_STORAGES = {
    "DoubleStorage": np.float64,
    "FloatStorage": np.float32,
    "HalfStorage": np.float16,
    "BFloat16Storage": np.uint16,
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}


def _read_weights(path):
    """What torch.save wrote, without torch: a zip file of a pickle and of the numbers; bfloat16 as its bits."""
    import pickle
    import zipfile

    def tensor(numbers, first, shape, strides, *_):
        steps = [n * numbers.itemsize for n in strides]
        return np.array(np.lib.stride_tricks.as_strided(numbers[first:], shape, steps), order="C")

    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
                return tensor
            if (module, name) == ("collections", "OrderedDict"):
                return dict
            if module == "torch" and name in _STORAGES:
                return _STORAGES[name]
            raise pickle.UnpicklingError(f"{path} holds {module}.{name}, which is no tensor")

        def persistent_load(self, key):
            return np.frombuffer(archive.read(f"{folder}/data/{key[2]}"), key[1])

    with zipfile.ZipFile(path) as archive:
        (listed,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        folder = listed.rpartition("/")[0]
        with archive.open(listed) as file:
            return Reader(file).load()


def _weight(name, like):
    """One of the model's weights, from the file beside this module; read once, of torch where `like` is."""
    if not _WEIGHTS:
        _WEIGHTS.update(_read_weights(Path(__file__).with_name("weights.pt")))
        hold(list(_WEIGHTS.values()))
    if name not in _WEIGHTS:
        raise ValueError(f"{name} is missing: it was not passed, and it is none of the model's weights")
    found = _WEIGHTS[name]
    if like is None or not _is_torch(like):
        return found
    if name not in _VIEWS:
        import torch

        made = torch.from_numpy(found)
        _VIEWS[name] = made.view(torch.bfloat16) if found.dtype == np.uint16 else made
    return _VIEWS[name]
'''


def loader_text(module: TileModule, sgraph: SGraph, main: str, launcher: Launcher) -> str:
    """The module's source.

    `main` is the C++ source that holds all launches, `launcher` what its function says and takes.
    """
    w = Writer()
    many = len(module.launches)
    orderless = module.orderless({Adds.SHARED})
    w.describe(f"{many} C++ kernel{'s' * (many != 1)}, compiled on first use", launcher.formula, sgraph, orderless)
    pasted = (files("prism.backends.cpu") / "support.py").read_text(encoding="utf-8")
    _, imports, rest = pasted.split("\n\n", 2)
    own = ["import ctypes", "import sys", "import threading", "import weakref", "from operator import itemgetter"]
    for line in [*sorted([*own, *imports.splitlines()], key=lambda x: (x.startswith("from"), x)), ""]:
        w.line(line)
    w.line("import numpy as np")
    w.blank()
    encoded = {target: [{"symbols": dict(c.symbols)} for c in entries] for target, entries in launcher.configs.items()}
    write_configs(w, "tile sizes and part counts", encoded)
    named = {s: identifier(s) for s in module.symbols}
    w.line("# The symbols of a configuration, and what the source calls them.")
    w.line(f"SYMBOLS = {named!r}" if named else "SYMBOLS = {}")
    w.line(f'SOURCE = "{main}"')
    w.blank()
    optional = (
        (DIRECT, direct(module, launcher.returned)),
        (WEIGHT, launcher.weights),
        (CONSTANT, launcher.returned),
        (STATED, any(t.stated for t in module.inputs)),
    )
    for source in (rest, RUNTIME, *(text for text, wanted in optional if wanted)):
        w.paste(source)
    w.blank(2)
    _launcher(w, module, launcher)
    return w.text


def direct(module: TileModule, returned: Sequence[Returned]) -> bool:
    """Whether calls of tensors like those of an earlier call can do without the interpreter."""
    tensors = len(module.inputs) + len(module.outputs) + len(module.exchanged)
    return not module.before and not returned and tensors <= DIRECT_TENSORS


def _buffers(module: TileModule) -> str:
    """The addresses of the buffers, as source."""
    groups = shared_places(module)
    if not groups:
        return "()"
    sizes = [[_SIZES.text(mul(b.dtype.bytes, product(b.shape))) for b in group] for group in groups]
    longest = [s[0] if len({*s}) == 1 else f"max({', '.join(dict.fromkeys(s))})" for s in sizes]
    place = {b.name: n for n, group in enumerate(groups) for b in group}
    return f"_arena({tuple_of(longest)}, {tuple_of([str(place[b.name]) for b in module.exchanged])})"


def _prepared(module: TileModule) -> list[str]:
    """The places of the weights that what runs before calls reads, and the bytes of what that stores, as source."""
    if not module.before:
        return []
    read = {t.name for t in module.fixed}
    places = tuple_of([str(n) for n, t in enumerate(module.inputs) if t.name in read])
    sizes = [_SIZES.text(mul(b.dtype.bytes, product(b.shape))) for b in module.kept]
    return [f"fixed={places}", f"kept_bytes={tuple_of(sizes)}"]


def _launcher(w: Writer, module: TileModule, launcher: Launcher) -> None:
    taken = {*module.lengths, identifier(module.name)}
    taken |= {identifier(s) for s in module.symbols} | _TAKEN | TORCH_OP_NAMES | STATED_NAMES
    tensors = name_tensors(module, taken)
    signature = Signature(module, tensors, _SIZES, lambda d: f'"{d.value}"', launcher)
    inputs, outputs = signature.inputs, signature.outputs
    signature.define(w, ["config=None", "out=None", "threads=None"])
    with w.indented():
        asked = ["config is None", "out is None", *[f"not {STATED_OPTION}"] * bool(signature.stated)]
        signature.docstring(w)
        learning = direct(module, launcher.returned)
        if learning:
            w.line(f"learns = {' and '.join(asked)}")
            w.line("kept = _OWN.__dict__")
            w.line('direct = kept.get(("direct", threads))')
            with w.block('if learns and direct is not None and "later" not in kept:'):
                w.line(f"found = direct({', '.join(inputs)})")
                with w.block("if found is not None:"):
                    w.line("return found")
        signature.checks(w)
        with w.block("if config is None:"):
            w.line("config = choose()")
        symbols = {identifier(s): s for s in module.symbols}
        for n in sorted({n for b in module.buffers for e in b.shape for n in scalars(e)} & set(symbols)):
            w.line(f'{n} = config["symbols"]["{symbols[n]}"]')
        w.line("if out is None:")
        with w.indented():
            for n, t in zip(outputs, module.outputs, strict=True):
                w.line(f'{n} = _empty({inputs[0]}, {signature.shape(t.shape)}, "{t.dtype.value}")')
        w.line("else:")
        with w.indented():
            w.line(f"{tuple_of(outputs).strip('()')} = out")
            for n, t in zip(outputs, module.outputs, strict=True):
                signature.expect(w, t, signature.shape(t.shape))
                with w.block(f"if {n} is not _dense({n}):"):
                    w.line(f'raise ValueError("{n} must be contiguous")')
            w.call("_apart", [f"dict({', '.join(f'{n}={n}' for n in names)})" for names in (outputs, inputs)])
        own = module.lengths
        passed = f"[{', '.join([*inputs, *outputs])}]"
        given = ["config", passed, _buffers(module), f"[{', '.join(own)}]", "threads", *_prepared(module)]
        w.call("_call", given)
        if learning:
            with w.block('if learns and kept.get("learned", 0) <= _LEARNED:'):
                w.call("_learn", ["config", tuple_of(inputs), tuple_of(outputs), *given[2:5]])
        w.line(f"return {', '.join(signature.results(inputs[0]))}")
    signature.torch_op(w, imported=False)


_NAMES = """
np os ctypes itemgetter hashlib shutil subprocess tempfile threading weakref Path FLAGS TUNING CONFIGS SYMBOLS SOURCE
config out threads given choose load hold _constant default_threads find_compiler included_by sources_of machine
cache_folders _of_another scratch_folder compile_source CompilerError Iterator Mapping Sequence ThreadPoolExecutor
PRODUCTS LINKERS LESS NAMES DECLARED products_in products_folders compile_product product_in nameless _Launch _object
_alone _known _compiled re contextmanager suppress sys time LEFT_S learns kept direct found
"""
_TAKEN = frozenset(_NAMES.split())
