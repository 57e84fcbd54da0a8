"""Emission: from an sGraph to C++17 and the Python that compiles, loads and calls it.

<launch>.cpp   one launch: the support code that it uses, its programs, and a function that runs its grid; compiled once
               for all modules that hold it, whatever it is called there; equal launches of a module share one
<entry>.cpp    a function that runs all launches in order, linked with them
multiply*.cpp  a matrix product as a function of its own, for each kind of operands: compiled once for all tiles, linked
held.cpp       what products know of weights that stay as they are
direct-call.cpp  calls like an earlier one, past the interpreter; compiled once for a machine
the module     numpy or torch tensors in and out, like the Triton module (loader.py)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

from prism.backends.cpu.cxx import Names, Writer, factor, integer
from prism.backends.cpu.kernel import TENSOR_TYPES, KernelEmitter
from prism.backends.cpu.loader import direct, loader_text
from prism.backends.cpu.products import HELD, product_source, support
from prism.backends.cpu.support import NAMES, PRODUCTS, nameless, products_in
from prism.backends.host import Launcher
from prism.backends.lower import lower
from prism.backends.passes.exponents import of_two
from prism.backends.protocol import Backend, ModuleSource
from prism.backends.tile import Constant, TileLaunch, TileModule, TileProgram, TileRepeat, identifier, scalars
from prism.backends.tile import Load as TileLoad
from prism.backends.tile import Store as TileStore
from prism.backends.tile_spec import check_module
from prism.ir.kit import statements
from prism.program.extents import Extent, add, mul, product
from prism.program.nodes import SymbolRange, Tensor
from prism.program.returned import Returned
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph

DEFAULT_TILE = 32
"""A symbol's value in a source that is compiled by hand, without a configuration."""


def emit_module(
    sgraph: SGraph,
    *,
    formula: str = "",
    configs: Mapping[str, Sequence[Config]] | None = None,
    weights: bool = False,
    returned: Sequence[Returned] = (),
    ranges: Mapping[str, SymbolRange] | None = None,
) -> ModuleSource:
    """The sGraph as C++, whose sources are `extra`, with its loader: see `prism.backends.protocol.Emit`."""
    module = complete(lower(sgraph, defer=False).over(of_two))
    check_module(module)
    entry = identifier(sgraph.name)
    extra: dict[str, str] = {}
    sources: dict[str, str] = {}
    alike: dict[str, str] = {}
    for launch in module.launches:
        text = _launch(launch)
        symbols = [c.name for c in launch.constants if c.symbol is not None]
        sources[launch.name] = alike.setdefault(nameless(text, symbols), launch.name)
        extra.setdefault(f"{sources[launch.name]}.cpp", text)
    main = f"{entry}.cpp"
    while main in extra:
        main = main.removesuffix(".cpp") + "_all.cpp"
    extra[main] = _main(module, sources, bool(products_in("".join(extra.values()))))
    extra |= {f"{name}.cpp": product_source(name) for name in products_in("".join(extra.values()))}
    if direct(module, returned):
        extra["direct-call.cpp"] = support("direct")
    text = loader_text(module, sgraph, main, Launcher(formula, configs or {}, weights, returned, ranges or {}))
    return ModuleSource(entry, text, tuple(launch.name for launch in module.launches), extra)


CPP = Backend("C++", emit_module)


def complete(module: TileModule) -> TileModule:
    """The module with the lengths and constants that grids and axes name among each program's parameters.

    On a GPU the host counts the programs; here the launch does. Tensors are in the order in which they are met, which
    hangs on no names.
    """
    symbols = {identifier(s): s for s in module.symbols}

    def program(p: TileProgram) -> TileProgram:
        named = {n for g in p.grid for n in scalars(g.count)}
        named |= {n for d in p.dims for a in d.axes for n in scalars(a.extent)}
        known = {c.name for c in p.constants}
        constants = tuple(Constant(n, symbols[n]) for n in sorted(named - known) if n in symbols)
        lengths = sorted({*p.lengths, *(n for n in named - known if n not in symbols)})
        met = dict.fromkeys(s.tensor for s in statements(p.body) if isinstance(s, (TileLoad, TileStore)))
        tensors = sorted(p.tensors, key=lambda t: [*met].index(t.name) if t.name in met else len(met))
        return replace(p, tensors=tuple(tensors), constants=p.constants + constants, lengths=tuple(lengths))

    def launch(old: TileLaunch) -> TileLaunch:
        programs = tuple(program(p) for p in old.programs)
        constants = {c.name: c for c in (*old.constants, *(c for p in programs for c in p.constants))}
        lengths = sorted({*old.lengths, *(n for p in programs for n in p.lengths)})
        tensors = tuple(dict.fromkeys((*(t for p in programs for t in p.tensors), *old.tensors)))
        return replace(
            old, programs=programs, tensors=tensors, constants=tuple(constants.values()), lengths=tuple(lengths)
        )

    return replace(module, launches=tuple(launch(old) for old in module.launches))


def _launch(launch: TileLaunch) -> str:
    programs = Writer()
    emitters = [KernelEmitter(p, programs) for p in launch.programs]
    for emitter in emitters:
        emitter.run()
        programs.line()
    w = Writer()
    w.line("// One launch, written by prism.")
    products = sorted(set().union(*(e.products for e in emitters)))
    if products:
        w.line(f"{PRODUCTS}{' '.join(products)}")
    _support(w, ("core", "math", *(["calls"] if products else [])))
    names = _names(launch)
    symbols = [c.name for c in launch.constants if c.symbol is not None]
    space = f"{launch.name}_space"
    w.line(f"{NAMES}{' '.join([launch.name, space, *symbols])}")
    w.line("#ifndef PRISM_NAME")
    w.line("#define PRISM_NAME(name) name")
    w.line("#endif")
    for c in launch.constants:
        if c.symbol is not None:
            w.line(f"#ifndef PRISM_{c.name}")
            w.line(f"#define PRISM_{c.name} {DEFAULT_TILE}")
            w.line("#endif")
    space = f"PRISM_NAME({space})"
    w.line()
    with w.block(f"namespace {space}"):
        w.line("using namespace prism;")
        for c in launch.constants:
            if c.symbol is not None:
                w.line(f"constexpr int64_t {names(c.name)} = PRISM_{c.name};")
        w.line()
        w.lines(programs.text.splitlines())
        _grid(w, launch, emitters)
    w.line()
    head = f'extern "C" void PRISM_NAME({launch.name})(void* const* tensors, const int64_t* lengths, int threads)'
    with w.block(head):
        w.line(f"{space}::run_grid(tensors, lengths, threads);")
    return w.text


def _support(w: Writer, parts: Sequence[str]) -> None:
    """The support code, where it is not there yet."""
    for part in parts:
        w.line(f"#ifndef PRISM_{part.upper()}")
        w.line(f"#define PRISM_{part.upper()}")
        w.lines(support(part).splitlines())
        w.line("#endif")


def _names(launch: TileLaunch) -> Names:
    return Names([*(t.name for t in launch.tensors), *launch.lengths, *(c.name for c in launch.constants)])


def _grid(w: Writer, launch: TileLaunch, emitters: Sequence[KernelEmitter]) -> None:
    """The function that runs all programs of the launch."""
    names = _names(launch)
    written = {s.tensor for p in launch.programs for s in statements(p.body) if isinstance(s, TileStore)}
    with w.block("static void run_grid(void* const* tensors, const int64_t* lengths, int threads)"):
        for n, t in enumerate(launch.tensors):
            kind = ("" if t.name in written else "const ") + TENSOR_TYPES[t.dtype]
            w.line(f"{kind}* p_{names(t.name)} = ({kind}*)tensors[{n}];")
        for n, name in enumerate(launch.lengths):
            w.line(f"const int64_t {names(name)} = lengths[{n}];")
        ends: list[str] = []
        rooms = "0"
        for n, e in enumerate(emitters):
            count = " * ".join(factor(g.count, names) for g in e.program.grid) or "1"
            w.line(f"const int64_t end_{n} = {f'{ends[-1]} + ' if ends else ''}{count};")
            ends.append(f"end_{n}")
            rooms = f"v_maxi({rooms}, {e.program.name}_room({', '.join(names(x) for x in e.program.lengths)}))"
        w.line(f"const int64_t room = {rooms};")
        # Asked of the cache that is there when it runs.
        w.line(f"const bool past = v_outgrows({_bytes([t for t in launch.tensors if t.name in written], names)});")
        w.line(f"const int64_t soon = v_soon({_bytes(launch.tensors, names)});")
        multiply = any(e.multiplies for e in emitters)
        panels = ", Packed& packed" * multiply
        with w.block(f"const auto run_one = [&](int64_t pid, char* at{panels})", ";"):
            if multiply and len(emitters) > 1:
                w.line("packed = {};  // each kernel has memory of its own cut, where another one writes")
            for n, e in enumerate(emitters):
                args = [f"pid - {ends[n - 1]}" if n else "pid", "at", "past", "soon"]
                args += ["packed"] * e.multiplies
                args += [f"p_{names(t.name)}" for t in e.program.tensors]
                args += [names(x) for x in e.program.lengths]
                guard = f"if (pid < {ends[n]}) " if n < len(emitters) - 1 else ""
                w.line(f"{'else ' if n else ''}{guard}{e.program.name}_program({', '.join(args)});")
        every = f"for (int64_t pid = 0; pid < {ends[-1]}; ++pid) run_one(pid, at{', packed' * multiply});"
        # To begin and end a team of one takes longer than a small kernel.
        with w.block(f"if (threads <= 1 || {ends[-1]} <= 1)"):
            w.line("char* at = scratch().get(room);")
            w.lines(["Packed packed = {};"] * multiply)
            w.line(every)
            w.line("v_fence(past);")
            w.line("return;")
        w.line("#pragma omp parallel num_threads(threads)")
        with w.block():
            w.line("char* at = scratch().get(room);")
            w.lines(["Packed packed = {};"] * multiply)
            _dealt(w, emitters, names, ends[-1], every)
            w.line("v_fence(past);")


def _dealt(w: Writer, emitters: Sequence[KernelEmitter], names: Names, end: str, every: str) -> None:
    """The loop over the programs by a team: equal shares of those alike, others as threads get free.

    Equal shares of programs of which the last do less are not equal: of 129 rows in tiles of 64 by two columns, one
    thread would do three tiles and the other one and a bit.
    """
    if len(emitters) > 1 or any(e.imbalanced for e in emitters):
        w.line("#pragma omp for schedule(dynamic, 1)")
        w.line(every)
        return
    cut = dict.fromkeys(f"{factor(x, names)} % {names(str(size))} == 0" for e in emitters for x, size in e.ragged)
    if cut:
        with w.block(f"if (!({' && '.join(cut)}))"):
            w.line(f"const int64_t few = v_maxi(1, {end} / (8 * threads));")
            w.line("#pragma omp for schedule(dynamic, few)")
            w.line(every)
    with w.block("else") if cut else nullcontext():
        w.line("#pragma omp for schedule(static)")
        w.line(every)


def _bytes(tensors: Sequence[Tensor], names: Names) -> str:
    """The bytes of tensors together, as source."""
    total: Extent = 0
    for t in tensors:
        total = add(total, mul(t.dtype.bytes, product(t.shape)))
    return integer(total, names)


_HOLDING = (("hold", "const void*, int64_t"), ("forget", "const void*"))
"""What a caller says of memory that stays as it is, to who has no products: nothing."""


def _main(module: TileModule, sources: Mapping[str, str], products: bool) -> str:
    """All launches in order.

    `sources` has by launch the one whose source it shares; of `products`, some operands may be held.
    """
    w = Writer()
    w.line(f"// {module.name}: all launches in order, written by prism.")
    if products:
        w.line(f"{PRODUCTS}{HELD}")
    takes = "(void* const* tensors, const int64_t* lengths, int threads)"
    w.line("#ifdef PRISM_APART")
    w.line("#include <cstdint>")
    w.line("#ifndef PRISM_NAME")
    w.line("#define PRISM_NAME(name) name")
    w.line("#endif")
    for name in dict.fromkeys(sources.values()):
        w.line(f'extern "C" void PRISM_NAME({name}){takes};')
    w.line("#else")
    for name in dict.fromkeys(sources.values()):
        w.line(f'#include "{name}.cpp"')
    w.line("#endif")
    w.line()
    everything = [t.name for t in (*module.inputs, *module.outputs, *module.exchanged, *module.kept)]
    pointers = {name: f"tensors[{n}]" for n, name in enumerate(everything)}
    lengths = module.lengths
    if module.before:
        with w.block(f'extern "C" void PRISM_NAME(prepare){takes}'):
            for launch in module.prepared:
                _call(w, sources[launch.name], launch, pointers, lengths)
    with w.block(f'extern "C" void PRISM_NAME(run){takes}'):
        for x in module.order:
            if isinstance(x, TileRepeat):
                _steps(w, module, x, sources, pointers, lengths)
            else:
                _call(w, sources[x.name], x, pointers, lengths)
    for name, takes in () if products else _HOLDING:
        w.line(f'extern "C" void PRISM_NAME({name})({takes}) {{}}')
    return w.text


def _call(w: Writer, name: str, launch: TileLaunch, pointers: Mapping[str, str], lengths: Sequence[str]) -> None:
    """One launch, by the function of that name; `pointers` says where tensors are."""
    with w.block():
        if name != launch.name:
            w.line(f"// {launch.name}")
        given = ", ".join(pointers[t.name] for t in launch.tensors) or "nullptr"
        sizes = ", ".join(f"lengths[{lengths.index(n)}]" for n in launch.lengths) or "0"
        w.line(f"void* const own[] = {{{given}}};")
        w.line(f"const int64_t sizes[] = {{{sizes}}};")
        w.line(f"PRISM_NAME({name})(own, sizes, threads);")


def _steps(
    w: Writer,
    module: TileModule,
    repeat: TileRepeat,
    sources: Mapping[str, str],
    pointers: Mapping[str, str],
    lengths: Sequence[str],
) -> None:
    """The launches of a loop's step, once for each step."""
    with w.block():
        names = Names(lengths)
        for length in repeat.lengths:
            w.line(f"const int64_t {names(length)} = lengths[{lengths.index(length)}];")
        trips = integer(repeat.trips, names)
        own = dict(pointers)
        with w.block(f"for (int64_t step = 0; step < {trips}; ++step)"):
            w.line(f"const int64_t at = {f'{trips} - 1 - step' if repeat.reverse else 'step'};")
            for n, window in enumerate(repeat.windows):
                bytes_ = _bytes([window.tensor], names)
                if window.first is None:
                    place = f"(char*){pointers[window.of]} + at * ({bytes_})"
                else:
                    first = f"(char*){pointers[window.first]}" + (
                        f" + {window.place} * ({bytes_})" if window.place else ""
                    )
                    before = f"(char*){pointers[window.of]} + (at {'+' if repeat.reverse else '-'} 1) * ({bytes_})"
                    place = f"step == 0 ? {first} : {before}"
                own[window.tensor.name] = f"window_{n}"
                w.line(f"char* const window_{n} = {place};  // {window.tensor.name}")
            for launch in module.within(repeat):
                _call(w, sources[launch.name], launch, own, lengths)
