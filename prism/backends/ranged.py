"""The Python of kernels for a range of shapes: of several modules the one that was made for the lengths at hand.

The text is self-contained: it imports the modules beside it, and onnxruntime where the original model is asked for.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sympy

from prism.backends.host import lengths_of, operator_text
from prism.backends.protocol import ModuleSource
from prism.backends.source import HOST, Writer, fresh
from prism.backends.tile import identifier
from prism.errors import UnsupportedError
from prism.program.nodes import Tensor

RUNTIME = '''
HERE = Path(__file__).resolve().parent
_LOADED = {}


def _module(cell):
    """The module of a cell, imported when it is first needed; all read the same weights, and read them once."""
    file = CELLS[cell][1]
    if file not in _LOADED:
        spec = importlib.util.spec_from_file_location(f"{__name__}_{file.partition('/')[0]}", HERE / file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for other in _LOADED.values():
            if hasattr(other, "_WEIGHTS"):
                module._WEIGHTS = other._WEIGHTS
        _LOADED[file] = module
    return _LOADED[file]


def _function(cell):
    """The kernels of a cell as a function."""
    found = _FUNCTIONS[cell]
    if found is None:
        found = _FUNCTIONS[cell] = functools.partial(getattr(_module(cell), ENTRY), **CELLS[cell][2])
    return found


def _given(*args):
    """What was passed: weights that were left out are the model's own."""
    return [x for x in args if x is not None]


_FUNCTIONS = [None] * len(CELLS)
'''
ORIGINAL = '''
_SESSIONS = []


def _original(*args):
    """The model that was given, in onnxruntime: for lengths that no kernels were made for, or are faster at."""
    for place, (name, x) in enumerate(zip(TAKES, args)):
        if x is not None and not name:
            raise ValueError(
                f"argument {place} of {ENTRY} is one of the model's weights, and at these lengths the model that was "
                "given runs, with its own: leave it out"
            )
    if not _SESSIONS:
        try:
            import onnxruntime as ort
        except ImportError:
            raise ImportError(
                "onnxruntime is missing, which runs the model at lengths that no kernels are for: "
                "pip install onnxruntime"
            ) from None
        _SESSIONS.append(ort.InferenceSession(str(HERE / MODEL), providers=["CPUExecutionProvider"]))
    torch_like = any(hasattr(x, "data_ptr") for x in args)
    given = [x.detach().cpu().numpy() if hasattr(x, "data_ptr") else x for x in args]
    found = _SESSIONS[0].run(None, {name: x for name, x in zip(TAKES, given) if name})
    if torch_like:
        import torch

        device = next(x.device for x in args if hasattr(x, "data_ptr"))
        found = [torch.from_numpy(y).to(device) for y in found]
    return found[0] if len(found) == 1 else tuple(found)
'''


@dataclass(frozen=True, slots=True)
class Way:
    """Where a call goes."""

    predicate: sympy.Basic  # over the symbols of the extents
    text: str  # the same to read
    file: str  # the module, with its folder
    options: Mapping[str, int] = field(default_factory=dict)  # what its function is called with by default
    given: bool = False  # whether the module is for other lengths, and is asked only where what was given cannot be


@dataclass(frozen=True, slots=True)
class Original:
    """The model that was given, which takes the lengths that no kernels were made for, or are faster at."""

    file: str  # it, beside the module
    takes: tuple[str, ...]  # for each of the function's inputs the model's input; empty for one of its weights


def ranged_text(
    source: ModuleSource,
    inputs: Sequence[Tensor],
    weights: bool,
    results: int,
    ranges: Mapping[str, tuple[int, int]],
    ways: Sequence[Way],
    original: Original | None = None,
    outside: bool = False,
) -> str:
    """The module.

    Args:
        source: the module of a cell: the function that is written here is called and documented as its.
        inputs: the program's inputs, in the order of its parameters.
        weights: whether parameters may be left out.
        results: how many tensors it returns.
        ranges: the least and the largest length that it is for, by symbol.
        ways: the cells' modules; the last takes what is left.
        original: what runs where a way is `given`.
        outside: whether `original` runs at other lengths, too.

    Raises:
        UnsupportedError: a length does not follow from the shapes of the inputs.
    """
    entry, parameters, doc = _signature(source)
    taken = set(parameters)
    otherwise, options, cell = fresh("otherwise", taken), fresh("options", taken), fresh("cell", taken)
    host = {t.name: p for t, p in zip(inputs, parameters, strict=True)}
    lengths = lengths_of(inputs, host, HOST)
    needed = sorted({identifier(s.name) for w in ways for s in w.predicate.free_symbols} | set(map(identifier, ranges)))
    for name in needed:
        if name not in lengths:
            raise UnsupportedError(
                f"the length {name} cannot be told from the inputs' shapes",
                where=entry,
                fix="give an input a dimension of that length, or tune at one shape",
            )
    within = " and ".join(f"{low} <= {identifier(s)} <= {high}" for s, (low, high) in sorted(ranges.items()))
    w = Writer()
    w.line(f'"""{entry} for {within}: kernels of several modules, chosen by the lengths of the inputs.')
    w.blank()
    w.line("Written by prism; each module's folder holds its proof.")
    w.line('"""')
    w.blank()
    w.line("import functools")
    w.line("import importlib.util")
    w.line("from pathlib import Path")
    w.blank()
    w.line(f'ENTRY = "{entry}"')
    w.line("# Where each module is for, its file, and what its function is called with where nothing else is said.")
    w.line("CELLS = (")
    with w.indented():
        for way in ways:
            w.line(f"({way.text!r}, {way.file!r}, {dict(way.options)!r}),")
    w.line(")")
    if original is not None:
        w.line(f"MODEL, TAKES = {original.file!r}, {original.takes!r}")
    given_at = tuple(n for n, way in enumerate(ways) if way.given)
    if given_at:
        w.line("# Where no kernels are for: those modules are of other lengths.")
        w.line(f"GIVEN = {given_at!r}")
    w.blank()
    w.lines((RUNTIME + ("\n" + ORIGINAL if original is not None else "")).splitlines())
    w.blank(2)
    given = [f"{p}=None" for p in parameters] if weights else list(parameters)
    w.call(f"def {entry}", [*given, "*", f"{otherwise}=None", f"**{options}"], ":")
    called = ", ".join(parameters)
    with w.indented():
        w.lines(_documented(doc, within, otherwise, options, original is not None, outside, ways))
        with w.block("try:"):
            for name in needed:
                w.line(f"{name} = {lengths[name]}")
        with w.block("except (AttributeError, IndexError):"):
            w.line(f"return _function(0)({called}, **{options})  # which says what is wrong")
        w.line(f"{cell} = _cell({', '.join(needed)})")
        theirs = f"not ({within})" + f" or {cell} in GIVEN" * bool(given_at)
        with w.block(f"if {otherwise} is not None and ({theirs}):"):
            w.line(f"return {otherwise}(*_given({called}))")
        if original is not None and (outside or given_at):
            with w.block(f"if {theirs if outside else f'{within} and {cell} in GIVEN'}:"):
                w.line(f"return _original({called})")
        if not outside:
            shown = ", ".join(f"{s}={{{s}}}" for s in sorted(map(identifier, ranges)))
            with w.block(f"if not ({within}):"):
                w.line(f'raise ValueError(f"{shown}: the kernels were made for {within}")')
        w.line(f"return _function({cell})({called}, **{options})")
    w.blank(2)
    with w.block(f"def _cell({', '.join(needed)}):"):
        w.line('"""Which of the modules the lengths are for."""')
        for n, way in enumerate(ways[:-1]):
            with w.block(f"if {condition(way.predicate)}:"):
                w.line(f"return {n}")
        w.line(f"return {len(ways) - 1}")
    w.blank(2)
    with w.block("def _results(*args):"):
        w.line('"""Shape and data type of each result for such arguments."""')
        w.line("return _module(0)._results(*args)")
    w.blank(2)
    w.lines(operator_text(entry, parameters, weights, results, False).splitlines())
    return w.text


def _signature(source: ModuleSource) -> tuple[str, list[str], str]:
    """The name, the parameters and the docstring of a module's function."""
    for node in ast.parse(source.text).body:
        if isinstance(node, ast.FunctionDef) and node.name == identifier(source.entry):
            return node.name, [a.arg for a in node.args.args], ast.get_docstring(node) or ""
    raise AssertionError(f"{source.entry} is not in its own module")


def _documented(
    doc: str, within: str, otherwise: str, options: str, original: bool, outside: bool, ways: Sequence[Way]
) -> list[str]:
    """The docstring of a cell's function, with what this one takes besides."""
    given = "".join(f", or {way.text}" for way in ways if way.given)
    said = doc.replace("\\", "\\\\").replace('"""', "'''").splitlines()
    runs = "the model that was given, in onnxruntime"
    within_it = f"{runs}, within the range, and other lengths are refused" if given else "other lengths are refused"
    other = "other lengths are refused" if not original else runs if outside else within_it
    place = next((n for n, line in enumerate(said) if line.lstrip().startswith("config:")), len(said))
    said[place : place + 1] = [
        f"    {otherwise}: a function that is called with the same tensors where not {within}{given}; by default",
        f"        {other}.",
        f"    {options}: of the kernels' own functions.",
    ]
    return [f'"""{said[0]}', *said[1:], '"""']


def condition(predicate: sympy.Basic) -> str:
    """The predicate as Python."""
    names = {s: sympy.Symbol(identifier(s.name), integer=True) for s in predicate.free_symbols}
    return str(sympy.pycode(predicate.xreplace(names), fully_qualified_modules=False))
