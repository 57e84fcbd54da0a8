"""The Python around emitted kernels, whatever they are written in: what a launcher takes, refuses and returns."""

from __future__ import annotations

import keyword
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import sympy

from prism.backends.source import PythonIntegers, Writer
from prism.backends.tile import TileModule, identifier, scalars
from prism.errors import UnsupportedError
from prism.program.extents import Extent, is_static
from prism.program.nodes import DType, SymbolRange, Tensor
from prism.program.returned import Computed, Made, Passed, Returned
from prism.sgraph.config import Config

TORCH_OP = '''
_OPERATORS = []


def {name}():
    """`{entry}` as an operator of torch, which torch.compile and torch.export take as one node.

    It has no gradient, and says so where one is asked for. Modules of other contents, or in another folder, have other
    operators: torch.ops.prism.{entry}_ and a number.
    """
    import hashlib
{torch}
    if not _OPERATORS:
        with open(__file__, "rb") as file:
            key = hashlib.sha256(file.read() + __file__.encode()).hexdigest()[:12]

        def run(*args):
            found = {entry}(*args)
            found = found if isinstance(found, tuple) else (found,)
            # What an operator returns is none of what it takes.
            found = tuple(y.clone() if any(y is x for x in args) else y for y in found)
            return found if len(found) > 1 else found[0]

        def fake(*args):
            like = next(x for x in args if x is not None)
            found = tuple(like.new_empty(shape, dtype=getattr(torch, d)) for shape, d in _results(*args))
            return found if len(found) > 1 else found[0]

        schema = (
{schema}
        )
        made = torch.library.custom_op("prism::{entry}_" + key, run, mutates_args=(), schema=schema)
        made.register_fake(fake)
        # The registration ends with what `made` is.
        _OPERATORS.extend([getattr(torch.ops.prism, "{entry}_" + key), made])
    return _OPERATORS[0]
'''
STATED = '''
def _stated(name, tensor, stated, fits):
    """Refuse an argument with an element that is not as stated: the kernels are proved where all are."""
    if str(tensor.dtype) == "uint16":  # the bits of bfloat16
        tensor = (tensor.astype("uint32") << 16).view("float32")
    values = tensor.double() if hasattr(tensor, "double") else tensor.astype("float64")
    held = fits(values)
    if not held.all():
        place = at = held.reshape(-1).tolist().index(False)
        index = []
        for n in reversed(tensor.shape):
            place, rest = divmod(place, n)
            index.insert(0, str(rest))
        raise ValueError(
            f"{name} is stated to be {stated}, for which alone these kernels compute what the model does, and "
            f"{name}[{', '.join(index)}] is {values.reshape(-1)[at].item():g}"
        )
'''
STATED_OPTION = "check_assumptions"
STATED_NAMES = frozenset({"_stated", STATED_OPTION})
"""What the check of stated inputs is called in the module, and the launcher's option that asks for it."""
TORCH_OP_NAMES = frozenset({"torch_op", "as_torch_op", "_results", "_OPERATORS"})
"""What it is made of is called so in the module."""


@dataclass(slots=True)
class Tensors:
    """What tensors are called in the module: by tensor name, the host's variable and the kernels' pointer."""

    host: dict[str, str]
    pointer: dict[str, str]


def name_tensors(module: TileModule, taken: Iterable[str]) -> Tensors:
    """Legal and distinct names, none of them taken."""
    used = set(taken)
    host: dict[str, str] = {}
    for t in module.tensors:
        base = identifier(t.name)
        if keyword.iskeyword(base):
            base += "_"
        name, n = base, 1
        while name in used:
            n += 1
            name = f"{base}_{n}"
        used.add(name)
        host[t.name] = name
    return Tensors(host, {t: f"{name}_ptr" for t, name in host.items()})


@dataclass(frozen=True, slots=True)
class Launcher:
    """What an emitted module's function says and takes, besides what its sGraph does."""

    formula: str  # what it computes, for docstrings
    configs: Mapping[str, Sequence[Config]]  # tuned configurations by target; without any it asks for one
    weights: bool  # whether arguments may be left out, and are then read from the weights file beside the module
    returned: Sequence[Returned]  # what it returns, where that is not the sGraph's outputs in order
    ranges: Mapping[str, SymbolRange]  # the lengths that it is for, by symbol: others are refused


@dataclass(slots=True)
class Signature:
    """What a launcher takes and returns."""

    module: TileModule  # the tile programs
    tensors: Tensors  # the names of tensors
    integers: PythonIntegers  # how lengths are printed
    dtype: Callable[[DType], str]  # how a data type is
    launcher: Launcher  # what else it says and takes
    lengths: dict[str, str] = field(init=False)
    """For each symbol of the extents, the expression that binds it."""

    def __post_init__(self) -> None:
        self.lengths = self._bound()

    @property
    def inputs(self) -> list[str]:
        """The names of the inputs."""
        return [self.tensors.host[t.name] for t in self.module.inputs]

    @property
    def outputs(self) -> list[str]:
        """The names of the outputs."""
        return [self.tensors.host[t.name] for t in self.module.outputs]

    def shape(self, shape: Sequence[Extent]) -> str:
        """A shape as a tuple."""
        return tuple_of([self.integers.text(e) for e in shape]) if shape else "()"

    def define(self, w: Writer, options: Sequence[str]) -> None:
        """The line that a launcher begins with."""
        asked = [f"{STATED_OPTION}=False"] * bool(self.stated)
        w.call(f"def {identifier(self.module.name)}", [*self._parameters, "*", *options, *asked], ":")

    @property
    def stated(self) -> list[Tensor]:
        """The inputs of which something is stated."""
        return [t for t in self.module.inputs if t.stated is not None]

    @property
    def _parameters(self) -> list[str]:
        return [f"{n}=None" for n in self.inputs] if self.launcher.weights else self.inputs

    def checks(self, w: Writer) -> None:
        """How its body goes on: arguments that were left out, ranks and types, lengths, every dimension."""
        inputs = self.inputs
        if self.launcher.weights:
            w.line(f"given = next((t for t in {tuple_of(inputs)} if t is not None), None)")
            for n in inputs:
                w.line(f'{n} = _weight("{n}", given) if {n} is None else {n}')
        for t in self.module.inputs:
            self.expect(w, t, tuple_of([str(e) if is_static(e) else "None" for e in t.shape]))
        for name, text in self.lengths.items():
            w.line(f"{name} = {text}")
        for symbol, held in sorted(self.launcher.ranges.items()):
            if identifier(symbol) in self.lengths:
                _hold(w, identifier(symbol), held)
        for t in self.module.inputs:
            if not all(is_static(e) or self._binds(t, n) for n, e in enumerate(t.shape)):
                self.expect(w, t, self.shape(t.shape))
        if self.stated:
            with w.block(f"if {STATED_OPTION}:"):
                for t in self.stated:
                    assert t.stated is not None
                    name = self.tensors.host[t.name]
                    w.line(f'_stated("{name}", {name}, "{t.stated}", lambda x: {t.stated.test("x")})')

    def _binds(self, t: Tensor, position: int) -> bool:
        """Whether that dimension is a length by itself, which is what it is said to be there, so that none differs."""
        extent = t.shape[position]
        place = f"{self.tensors.host[t.name]}.shape[{position}]"
        return isinstance(extent, sympy.Symbol) and self.lengths.get(identifier(extent.name)) == place

    def torch_op(self, w: Writer, imported: bool) -> None:
        """The function that makes an operator of torch of the launcher, and what that knows of the results."""
        entry = identifier(self.module.name)
        w.blank(2)
        w.call("def _results", self._parameters, ":")
        with w.indented():
            w.line('"""Shape and data type of each result for such arguments."""')
            results = [t for _, t in self._results()]
            needed = {n for t in results for e in t.shape for n in scalars(e)}
            for name, text in self.lengths.items():
                if name in needed:
                    w.line(f"{name} = {text}")
            w.line("return [")
            with w.indented():
                for t in results:
                    w.line(f'({self.shape(t.shape)}, "{t.dtype.value}"),')
            w.line("]")
        text = operator_text(entry, self.inputs, self.launcher.weights, len(results), imported)
        w.blank(2)
        for line in text.splitlines():
            w.line(line)

    def expect(self, w: Writer, t: Tensor, shape: str) -> None:
        """A check of one argument."""
        name = self.tensors.host[t.name]
        w.line(f'_expect("{name}", {name}, {shape}, {self.dtype(t.dtype)})')

    def _bound(self) -> dict[str, str]:
        config = {identifier(s) for s in self.module.symbols}
        found = lengths_of(self.module.inputs, self.tensors.host, self.integers)
        everything = {n for t in (*self.module.inputs, *self.module.outputs) for e in t.shape for n in scalars(e)}
        everything |= set(self.module.lengths)
        for name in sorted(everything - set(found) - config):
            raise UnsupportedError(
                f"the length {name} cannot be told from the inputs' shapes",
                where=f"emitting {self.module.name}",
                fix="give an input a dimension of that length",
            )
        return found

    def results(self, like: str) -> list[str]:
        """What the function returns, as source; `like` is what constants are made beside."""
        if not self.launcher.returned:
            return self.outputs
        found = []
        for r in self.launcher.returned:
            match r:
                case Computed(place):
                    found.append(self.tensors.host[self.module.outputs[place].name])
                case Passed(name):
                    found.append(self.tensors.host[name])
                case Made(t, values):
                    numbers = tuple_of([self._value(v, t.dtype) for v in values]) if values else "()"
                    found.append(f'_constant({like}, {numbers}, {self.shape(t.shape)}, "{t.dtype.value}")')
        return found

    def _results(self) -> list[tuple[str, Tensor]]:
        """Name and declaration of what the function returns."""
        if not self.launcher.returned:
            return [(self.tensors.host[t.name], t) for t in self.module.outputs]
        inputs = {t.name: t for t in self.module.inputs}
        found = []
        for r in self.launcher.returned:
            match r:
                case Computed(place):
                    t = self.module.outputs[place]
                    found.append((self.tensors.host[t.name], t))
                case Passed(name):
                    found.append((self.tensors.host[name], inputs[name]))
                case Made(t, _):
                    found.append((identifier(t.name), t))
        return found

    def docstring(self, w: Writer) -> None:
        """How its body begins."""
        lines = [
            line.rstrip()
            for line in self.launcher.formula.strip().replace("\\", "\\\\").replace('"""', "'''").splitlines()
        ] or [""]
        w.line(f'"""{lines[0]}')
        for line in lines[1:]:
            w.line(line)
        w.blank()
        w.line("Args:")
        for t in self.module.inputs:
            w.line(f"    {self.tensors.host[t.name]}: {_declaration(t)}.")
        if self.launcher.weights:
            w.line("    Those that are the model's weights may be left out.")
        w.line("    config: one entry of CONFIGS; by default the one for the device and the shapes.")
        if self.stated:
            w.line(f"    {STATED_OPTION}: whether all elements are compared with what is stated above.")
        w.blank()
        w.line("Returns:")
        w.line("    " + ", ".join(f"{name}: {_declaration(t)}" for name, t in self._results()) + ".")
        w.line('"""')

    def _value(self, value: float | Extent, dtype: DType) -> str:
        """A constant's element as source."""
        if not isinstance(value, float):
            return self.integers.text(value)
        if not dtype.is_float:
            return str(bool(value)) if dtype is DType.BOOL else str(int(value))
        return repr(value) if math.isfinite(value) else f'float("{value}")'


def lengths_of(inputs: Iterable[Tensor], host: Mapping[str, str], integers: PythonIntegers) -> dict[str, str]:
    """For each symbol of the inputs' shapes that follows from them, the expression that binds it."""
    found: dict[str, str] = {}
    composite: list[tuple[str, Extent]] = []
    for t in inputs:
        for position, extent in enumerate(t.shape):
            place = f"{host[t.name]}.shape[{position}]"
            if isinstance(extent, sympy.Symbol):
                found.setdefault(identifier(extent.name), place)
            elif not is_static(extent):
                composite.append((place, extent))
    # Of `2*s + 1` and the like, what is not known yet follows from the rest.
    while composite:
        left = [(place, extent) for place, extent in composite if not _solve(place, extent, found, integers)]
        if len(left) == len(composite):
            break
        composite = left
    return found


def _solve(place: str, extent: Extent, found: dict[str, str], integers: PythonIntegers) -> bool:
    """Bind the one symbol of the extent that is not known; False when there are more of them."""
    unknown = [s for s in getattr(extent, "free_symbols", ()) if identifier(s.name) not in found]
    if len(unknown) != 1:
        return not unknown
    (s,) = unknown
    expanded = sympy.expand(extent)
    per, rest = expanded.coeff(s, 1), expanded.coeff(s, 0)
    if per.has(s) or sympy.expand(per * s + rest - expanded) != 0:
        return False
    value = place if rest == 0 else f"({place} - {integers.factor(rest)})"
    found[identifier(s.name)] = value if per == 1 else f"{value} // {integers.factor(per)}"
    return True


def write_configs(w: Writer, what: str, configs: Mapping[str, Sequence[Mapping[str, object]]]) -> None:
    """The tuned configurations, as they are encoded, by target; `what` says what is in them."""
    w.line(f"# By target: {what}.")
    if not configs:
        w.line("CONFIGS = {}")
        return
    with w.block("CONFIGS = {", "}"):
        for target, entries in configs.items():
            with w.block(f'"{target}": [', "],"):
                for entry in entries:
                    with w.block("{", "},"):
                        for name, chosen in entry.items():
                            w.line(f'"{name}": {chosen},'.replace("'", '"'))


def operator_text(entry: str, inputs: Sequence[str], optional: bool, results: int, imported: bool) -> str:
    """The function that makes an operator of torch of a launcher; the module has `_results` besides.

    `optional` is whether its parameters may be left out, `results` how many tensors it returns, `imported` whether the
    module imports torch.
    """
    takes = ", ".join(f"Tensor? {n}=None" if optional else f"Tensor {n}" for n in inputs)
    gives = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    schema = "\n".join(
        f'            "{part}"' for part in textwrap.wrap(f"({takes}) -> {gives}", 90, drop_whitespace=False)
    )
    name = "torch_op" if entry != "torch_op" else "as_torch_op"
    torch = "" if imported else "\n    import torch\n"
    return TORCH_OP.format(name=name, entry=entry, schema=schema, torch=torch).strip("\n")


def _hold(w: Writer, name: str, held: SymbolRange) -> None:
    """Refuse a length for which the program would read what is not there, or means something else."""
    least, most = held.low > 0, not held.open  # proofs take it that there is an element along every axis
    if not least and not most:
        return
    outside = f"not {held.low} <= {name} <= {held.high}" if least and most else ""
    outside = outside or (f"{name} < {held.low}" if least else f"{name} > {held.high}")
    wanted = " and ".join([f"at least {held.low}"] * least + [f"at most {held.high}"] * most)
    with w.block(f"if {outside}:"):
        w.line(f'raise ValueError(f"the length {name} must be {wanted}, not {{{name}}}")')


def tuple_of(items: Sequence[str]) -> str:
    """A tuple as source."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _declaration(t: Tensor) -> str:
    said = f", stated to be {t.stated}" if t.stated is not None else ""
    return f"{t.dtype.value}[{', '.join(str(e) for e in t.shape)}]{said}"
