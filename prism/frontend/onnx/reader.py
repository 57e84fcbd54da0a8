"""The ONNX front end: a file to a program in index notation.

Here is the reading of the file and the walk over its nodes; what each operator means is in the other modules
beside this one, and which versions of it that is true of in `schemas`, which also sees to it that nothing a node
says is dropped. The walk keeps what every ONNX value is known to be (`graph.OnnxValue`), computes shapes as extents
where it can (`fold`), and turns every other node into definitions.
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import numpy as np
import onnx
import sympy
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import checker, external_data_helper, helper

from prism.contents import Mapped, check_readable
from prism.errors import ModelError, ShapeError, UnsupportedError, UsageError
from prism.frontend.onnx import (
    attention,
    choose,
    conformance,
    contrib,
    contrib_quantized,
    fold,
    functions,
    linear,
    norms,
    order,
    pointwise,
    quantized,
    recurrent,
    reduce,
    resize,
    scatter,
    schemas,
    spectra,
    views,
    windows,
    written,
)
from prism.frontend.onnx.conformance import Reading
from prism.frontend.onnx.dtypes import array_of, bytes_of, constant, dtype_of, element_type, held_as, is_own
from prism.frontend.onnx.graph import (
    MAIN_DOMAINS,
    Given,
    Graph,
    Node,
    OnnxValue,
    Translator,
    identifier,
    known_elements,
    single,
)
from prism.frontend.onnx.schemas import Signature
from prism.frontend.sizes import equated
from prism.program.empty import without_empty
from prism.program.extents import Extent, ExtentError, add, from_text, is_static, most_elements, normal, symbol, told
from prism.program.fold import as_extent
from prism.program.nodes import DType, Program, Read, SymbolRange, walk
from prism.program.operators import Operator
from prism.program.views import axes_of, same_extent

OPSETS = range(1, onnx.defs.onnx_opset_version() + 1)
"""Operator sets whose nodes may be read; whether one can be depends on its operator (schemas.VERSIONS)."""
LARGEST_HINTED = 1 << 27
"""The most elements of a tensor where nothing says how long it is: a GiB in the double precision that checks use."""
MOST_PLACES = 4096
"""The most places of an input over dimensions that nothing says, as a batch of 4 of 1024 tokens has."""
SYMBOL_RANGE = SymbolRange(1, 32768, hint=1024, open=True, guessed=True)
BATCH_HINT = 4
"""The value at which costs are quoted for a dimension that its name calls a batch."""
MAX_BYTES = 2**31 - 1
"""The largest model without its external data."""
T = TypeVar("T")
DECLARED_DOMAIN = "prism"
"""The domain of nodes that call an operator that the user declares."""
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
_ONLY_KNOWN = frozenset({"Shape", "Size", "Constant"})


def load(
    path: str | os.PathLike[str],
    *,
    operators: Sequence[Operator] = (),
    check: bool = True,
    empty: Collection[str] = (),
) -> Program:
    """Read an ONNX file as a program.

    Args:
        path: the file; tensors that it keeps in other files are looked for beside it.
        operators: what nodes of the domain `prism` mean, by their names.
        check: as for from_model.
        empty: as for from_model.

    Returns:
        The program, called after the file.

    Raises:
        ModelError: the file is missing, is not ONNX, is truncated, or its external data are not there.
        UnsupportedError: it holds an operator, an attribute or a data type that has no translation.
        ShapeError: its shapes do not add up.
    """
    file = Path(path)
    return from_model(parse(file), str(file), file.parent, operators=operators, check=check, empty=empty)


def from_bytes(data: bytes, name: str, *, operators: Sequence[Operator] = ()) -> Program:
    """A model in memory, which is sound and holds all of its tensors, as a program that is not compared with it."""
    return from_model(onnx.load_from_string(data), name, None, operators=operators, check=False)


def parse(file: Path) -> onnx.ModelProto:
    """The file as a message. Raises ModelError: it is missing, is not ONNX, or is truncated."""
    size, why = check_readable(file), ""
    if size > MAX_BYTES:
        why = f"it has {size:,} bytes, and a message of protobuf {MAX_BYTES:,} at most"
    try:
        data = b"" if why else file.read_bytes()
    except OSError as error:
        why = error.strerror or str(error)
    if why:
        raise ModelError("the model cannot be read", where=str(file), why=why, fix="check the path")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        _refuse_bytes(data, file)
    if not model.HasField("graph") or model.ir_version == 0:
        _refuse_bytes(data, file)
    return model


def _refuse_garbled_names(model: onnx.ModelProto, where: str) -> None:
    """Refuse names that are not UTF-8: protobuf hands them over as bytes where everything here takes text."""

    def texts() -> Iterator[str]:
        graph = model.graph
        yield from (o.domain for o in model.opset_import)
        yield from (named.name for named in (*graph.initializer, *graph.input, *graph.output))
        yield from (d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim)
        for f in model.functions:
            yield from (f.name, f.domain, f.overload, *f.input, *f.output, *f.attribute)
            yield from (o.domain for o in f.opset_import)
        for node in functions.nodes_within((*graph.node, *(n for f in model.functions for n in f.node))):
            yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
            yield from (attribute.name for attribute in node.attribute)

    for text in texts():
        if not isinstance(text, str):
            raise ModelError(
                "the model is damaged",
                where=where,
                why=f"the name {text!r} in it is not UTF-8",
                fix="copy or export it again",
            )


def _refuse_bytes(data: bytes, file: Path) -> NoReturn:
    # A model opens with field 1, its IR version, a small number: what does so and still does not parse was cut off.
    if len(data) > 1 and data[0] == 0x08 and 1 <= data[1] < 64:
        raise ModelError(
            "the model is truncated or damaged",
            where=str(file),
            why=f"its {len(data)} bytes end before the message does",
            fix="copy or export it again",
        )
    why, fix = "its bytes are not a ModelProto", "pass an .onnx file"
    if not data:
        why = "the file is empty"
    elif data.startswith(b"version https://git-lfs"):
        why, fix = "it stands for a file that Git LFS has not fetched", "run git lfs pull"
    raise ModelError("not an ONNX model", where=str(file), why=why, fix=fix)


def from_model(
    model: onnx.ModelProto,
    name: str,
    directory: Path | None,
    *,
    operators: Sequence[Operator] = (),
    check: bool = True,
    empty: Collection[str] = (),
) -> Program:
    """A model in memory as a program.

    Args:
        model: the model.
        name: its file name, or any name; errors say it and the program is called after it.
        directory: where its external data lie; None when it has none.
        operators: what nodes of the domain `prism` mean, by their names.
        check: compare the program with what onnx's reference runtime computes; see conformance.py.
        empty: symbolic dimensions that have no elements: a program's are 1 at least.

    Raises:
        ConformanceError: the program does not compute what the model does: a bug in prism.
        ModelError: its external data are not there, or its graph is not well formed.
        UnsupportedError: it holds an operator, an attribute or a data type that has no translation.
        ShapeError: its shapes do not add up.
    """
    model = written.live(written_out(model, name))
    declared = {op.name: op for op in operators}
    read = partial(_read, name=name, directory=directory, declared=declared, empty=nothing(empty, model))
    return conformance.checked(read(model), read) if check else read(model).program


def written_out(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model without functions of its own, its nodes in order, once it has been looked at as a whole.

    Raises:
        ModelError: it is damaged.
        UnsupportedError: its operator sets, or its functions, are not ones that can be read.
    """
    _refuse_garbled_names(model, name)
    opset = operator_set(model, name)
    if model.functions:
        _refuse_other_versions(model, opset, name)
    model = functions.expanded(model, name)
    for given, times in Counter(info.name for info in model.graph.input).items():
        if times > 1:
            raise ModelError(
                f"the model has {times} inputs that are called {given!r}", where=name, fix="export it again"
            )
    if not model.graph.output:
        raise ModelError("the model has no outputs", where=name, why="it computes nothing", fix="export it again")
    return written.for_runtimes(written.dense(written.ordered(model), name), opset)


def is_newer(given: onnx.ModelProto, model: onnx.ModelProto, name: str) -> bool:
    """Whether a file is of a newer format or operator set than what it was written out as."""
    return given.ir_version > model.ir_version or operator_set(given, name) > operator_set(model, name)


def for_runtimes(path: Path) -> tuple[bytes, list[str]]:
    """A file that is sound, as one that stands alone, and what its inputs are called.

    Where the model is newer than runtimes take it is one that says the same.

    Raises:
        UnsupportedError: with what lies in other files it is too large.
    """
    given = parse(path)
    model = written_out(given, str(path))
    held = {t.name for t in given.graph.initializer}
    names = [i.name for i in given.graph.input if i.name not in held]
    newer = is_newer(given, model, str(path))
    if not newer and not any(map(external_data_helper.uses_external_data, given.graph.initializer)):
        return path.read_bytes(), names
    model = model if newer else given
    for tensor in model.graph.initializer:
        load_external(tensor, str(path), path.parent)
    if model.ByteSize() > MAX_BYTES:
        raise UnsupportedError(
            f"the model has {model.ByteSize():,} bytes",
            where=str(path),
            why=f"it is written as one file, which has {MAX_BYTES:,} at most",
            fix="leave --outside away",
        )
    return bytes(model.SerializeToString(deterministic=True)), names


def _read(
    model: onnx.ModelProto,
    name: str,
    directory: Path | None,
    declared: Mapping[str, Operator],
    empty: Mapping[str, Extent],
) -> Reading:
    """A model without functions as a program, and what stands for each of its values."""
    opset = operator_set(model, name)
    refuse_unknown([n for n in model.graph.node if not _is_if(n)], name, declared, opset)

    def whole(model: onnx.ModelProto, equal: Mapping[str, Extent]) -> tuple[onnx.ModelProto, Walk]:
        walk = Walk(model, name, directory, declared, equal)
        for tensor in model.graph.initializer:
            walk.hold(tensor)
        for info in walk.passed:
            walk.take(info)
        for proto in model.graph.node:
            if _is_if(proto):
                walk.settle(proto)
                refuse_unknown([proto], name, declared, opset)
            walk.step(proto)
        return model, walk

    model, walk = settled(model, whole, empty)
    graph, values = walk.graph, walk.values
    return Reading(model, name, _finish(graph, model.graph.output, values, name), values, graph)


class _EqualSizesError(Exception):
    """What is being read means something only where two sizes are equal, which it does not say itself."""

    def __init__(self, symbol: str, extent: Extent) -> None:
        super().__init__(f"{symbol} = {extent}")
        self.symbol = symbol
        self.extent = extent


class _KnownBranchError(Exception):
    """The condition of an `If` is known."""

    def __init__(self, label: str, taken: bool) -> None:
        super().__init__(f"{label}: {taken}")
        self.label = label
        self.taken = taken


def nothing(empty: Collection[str], model: onnx.ModelProto) -> dict[str, Extent]:
    """What symbols of a model are that stand for no elements. Raises UsageError: it has no such one."""
    if not empty:
        return {}
    known = Graph()
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if name_of(dim):
                _extent(known, dim.dim_param)
    for name in sorted(set(map(identifier, empty)) - known.ranges.keys()):
        has = ", ".join(sorted(known.ranges)) or "none"
        raise UsageError(f"the model has no symbolic dimension {name}", where="--shape", fix=f"it has: {has}")
    return dict.fromkeys(map(identifier, empty), 0)


def settled(
    model: onnx.ModelProto,
    read: Callable[[onnx.ModelProto, Mapping[str, Extent]], T],
    known: Mapping[str, Extent] = MappingProxyType({}),
) -> T:
    """Read a model, from its beginning again each time that something that it leaves open turns out to be settled.

    Exporters give dimensions that are equal names of their own where nothing that they ran said so, and ask of sizes
    what the shapes say. Functions of the model are written out. `read` reads it as it is now known to be, given what
    some symbols are, of which `known` says what they are to begin with.
    """
    equal = dict(known)
    while True:
        try:
            return read(model, equal)
        except _KnownBranchError as known:
            place = next(n for n, p in enumerate(model.graph.node) if known.label in p.output)
            model = written.with_branch(model, place, known.taken)
        except _EqualSizesError as met:
            new = {symbol(met.symbol): sympy.sympify(met.extent)}
            equal = {name: normal(sympy.sympify(e).xreplace(new)) for name, e in equal.items()}
            equal[met.symbol] = met.extent


class Walk:
    """One pass over the nodes of a model without functions: what each value is known to be.

    `declared` is what nodes of the domain `prism` mean, `equal` what some of the model's symbols are, from `settled`;
    the directory is None when the model has no external data.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        name: str,
        directory: Path | None,
        declared: Mapping[str, Operator],
        equal: Mapping[str, Extent] = MappingProxyType({}),
    ) -> None:
        self.graph = Graph(where=name, equal=equal)  # the program so far
        self.values: dict[str, OnnxValue] = {}  # what stands for each value so far
        # Symbols for sizes that nothing says, which may be 1: two of them that meet need not be equal.
        self.made_up: set[str] = set()
        self._name = name
        self._declared = declared
        self.directory = directory
        self.opset = operator_set(model, name)  # the model's operator set
        held = {t.name for t in model.graph.initializer}
        self.passed = [info for info in model.graph.input if info.name not in held]  # the inputs that the caller passes
        self._dimensions = _dimensions(self.passed, equal)
        self._producers = {o: label_of(n) for n in model.graph.node for o in n.output}
        self._readers: dict[str, set[str]] = {o.name: {"an output"} for o in model.graph.output}
        for n in functions.nodes_within(model.graph.node):
            for i in n.input:
                self._readers.setdefault(i, set()).add(n.op_type)
        self._files: dict[Path, Mapped] = {}
        self._context = checker.C.CheckerContext()
        self._context.ir_version = model.ir_version
        self._context.opset_imports = {o.domain: o.version for o in model.opset_import} | {"": self.opset}

    def hold(self, tensor: onnx.TensorProto) -> None:
        """Read an initialiser, from another file where it lies in one."""
        where = f"{self._name}, initialiser {tensor.name!r}"
        dtype = held_as(tensor.data_type, self._readers.get(tensor.name, frozenset()), where)
        carried = not is_own(tensor.data_type)
        array = self._mapped(tensor, dtype)
        if array is None:
            load_external(tensor, self._name, self.directory)
            array = array_of(tensor, where, dtype)
        held = constant(array, dtype, tensor.name)
        self.values[tensor.name] = replace(held, carried=carried)

    def _mapped(self, tensor: onnx.TensorProto, dtype: DType) -> np.ndarray | None:
        """A tensor of a file beside the model as it lies there, none of it read; None where it does not lie so."""
        found = external(tensor, self._name, self.directory)
        if found is None or not is_own(tensor.data_type) or dtype is DType.BFLOAT16 or sys.byteorder != "little":
            return None
        path, offset, length = found
        kind, size = np.dtype(dtype.value), math.prod(map(int, tensor.dims))
        if not size or offset % kind.itemsize or length not in (None, size * kind.itemsize) or path.is_symlink():
            return None
        if path.parent != self.directory:  # onnx's loader says which paths it follows
            return None
        if path not in self._files:
            self._files[path] = Mapped.of(path)
        return np.frombuffer(self._files[path], kind, size, offset).reshape(tuple(tensor.dims))

    def take(self, info: onnx.ValueInfoProto) -> None:
        """Declare an input of the program."""
        self.values[info.name] = _input(self.graph, info, self._name, self._dimensions)

    def check(self, proto: onnx.NodeProto) -> None:
        """Refuse a node that is not legal by its operator's schema."""
        _check(proto, self._name, self._context)

    def settle(self, proto: onnx.NodeProto) -> None:
        """See whether it is known which branch of an `If` is taken. Raises _KnownBranchError: it is; see `settled`."""
        value = self.values.get(proto.input[0]) if _is_if(proto) and len(proto.input) == 1 else None
        elements = None if value is None else known_elements(value)
        result = next(filter(None, proto.output), "")
        if elements is not None and elements.size == 1 and is_static(elements.item()) and result:
            written.check_branches(proto, f"{self._name}, node {label_of(proto)!r}")
            raise _KnownBranchError(result, bool(elements.item()))

    def step(self, proto: onnx.NodeProto) -> None:
        """Translate the next node.

        Raises:
            _EqualSizesError: it means something only where two sizes are equal; see `settled`.
        """
        try:
            self._step(proto)
        except ShapeError as error:
            if error.differ is None:
                raise
            try:
                found = equated(*error.differ)
            except ValueError:  # they never are
                raise error from None
            made_up = self.made_up & _names(*error.differ)
            # What the model names is not what a size that nothing says makes of it, unless they are one.
            said = found is not None and (str(found[0]) in made_up or str(found[1]) in made_up or not made_up)
            if found is not None and said and not (error.stretch and made_up):
                gone, extent = found
                if gone.name not in self.made_up and str(extent) in self.made_up:
                    gone, extent = extent, gone  # a name that the model has stays
                raise _EqualSizesError(str(gone), extent) from error
            raise UnsupportedError(
                error.what,
                where=error.where,
                why=f"nothing says that {error.differ[0]} and {error.differ[1]} are equal",
                fix="export with these dimensions fixed",
            ) from error

    def _step(self, proto: onnx.NodeProto) -> None:
        own, fused = proto.domain == DECLARED_DOMAIN, contrib.has(proto, self.opset)
        if not own and not fused:
            self.check(proto)
        with _naming(proto, self._name):
            if own:
                node = _node(proto, self._name, None, self.values, self._producers)
                self.values[node.outputs[0]] = pointwise.declared(self.graph, node, self._declared[node.op])
            elif contrib.has_body(proto):
                where = f"{self._name}, node {label_of(proto)!r}"
                self._in_place(proto, contrib_quantized.body(proto, where), contrib_quantized.OPSET)
            elif fused:
                signature = contrib.signature(proto.op_type)
                node = _node(proto, self._name, signature, self.values, self._producers)
                results = contrib.TRANSLATORS[node.op](self.graph, node)
                schemas.check_all_read(node, signature.defaults, len(results))
                self._name_results(node, results)
            else:
                self._standard(proto, self.opset)

    def _name_results(self, node: Node, results: Sequence[OnnxValue | None]) -> None:
        for label, value in zip(node.outputs, results, strict=False):
            if label and value is not None:
                self.values[label] = replace(value, label=label) if not value.tensor else value

    def _standard(self, proto: onnx.NodeProto, opset: int) -> None:
        """Translate a node of an operator set: by its translator, or else by the body that onnx has of it."""
        if proto.op_type not in TRANSLATORS and proto.op_type not in _ONLY_KNOWN:
            self._by_body(proto, opset)
            return
        signature = schemas.signature(proto.op_type, opset)
        node = _node(proto, self._name, signature, self.values, self._producers)
        schemas.check_version(node.op, node.version, node.where)
        schemas.check_types(node, signature.inputs)
        self._name_results(node, _translate(self.graph, node, signature))

    def _by_body(self, proto: onnx.NodeProto, opset: int) -> None:
        types = [
            onnx.TypeProto() if v is None else helper.make_tensor_type_proto(element_type(v.dtype), _known_shape(v))
            for v in _operands(proto, f"{self._name}, node {label_of(proto)!r}", self.values, self._producers)
        ]
        written = functions.body(proto, opset, types)
        if written is None:
            raise UnsupportedError(
                f"version {schemas.signature(proto.op_type, opset).version} of {proto.op_type} is not supported",
                where=f"{self._name}, node {label_of(proto)!r}",
                why="onnx has a function body of other versions alone",
                fix="convert the model with onnx.version_converter or export it again",
            )
        self._in_place(proto, *written)

    def _in_place(self, proto: onnx.NodeProto, nodes: Sequence[onnx.NodeProto], own: int) -> None:
        """Translate the nodes that stand for one, which are of an operator set of their own."""
        refuse_unknown(nodes, self._name, {}, own)
        known = set(self.values)
        try:
            for inner in nodes:
                self._standard(inner, own)
        finally:
            for label in set(self.values) - known - set(proto.output):
                del self.values[label]


@contextmanager
def _naming(proto: onnx.NodeProto, name: str) -> Iterator[None]:
    """Name the node at which reading failed in a way that its translator has no word for."""
    try:
        yield
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as e:
        raise ModelError(
            "the node cannot be read",
            where=f"{name}, node {label_of(proto)!r}",
            why=" ".join((str(e) if isinstance(e, ValueError) else f"{type(e).__name__} {e}").split()),
            fix="check the model with onnx.checker.check_model(path, full_check=True), and report a right one",
        ) from e


_ADDRESSABLE = 2**63 - 1
"""Bytes that can be numbered."""

_LARGEST_VERSION = 2**31 - 1
"""What onnx itself can hold of a version."""


def operator_set(model: onnx.ModelProto, name: str) -> int:
    """The version of ONNX's own operators in a model. Raises ModelError, UnsupportedError: it is none that there is."""
    for o in model.opset_import:
        if not 0 <= o.version <= _LARGEST_VERSION:
            raise ModelError(
                f"the model asks for version {o.version} of the operator set {o.domain or 'ai.onnx'!r}",
                where=name,
                why="no operator set has such a version",
                fix="export it again",
            )
    versions = [o.version for o in model.opset_import if o.domain in MAIN_DOMAINS]
    if not versions and not any(n.domain in MAIN_DOMAINS for n in functions.nodes_within(model.graph.node)):
        return OPSETS.stop - 1  # it has no operator of the set
    if not versions:
        raise ModelError("the model does not say which operator set it uses", where=name, fix="export it again")
    if len(set(versions)) > 1:
        raise ModelError(
            "the model says two operator sets", where=name, why=" and ".join(map(str, versions)), fix="export it again"
        )
    if versions[0] not in OPSETS:
        raise UnsupportedError(
            f"operator set {versions[0]} is not supported",
            where=name,
            why=f"prism reads {OPSETS.start} to {OPSETS.stop - 1}",
            fix="convert the model with onnx.version_converter or export it again",
        )
    return int(versions[0])


def _refuse_other_versions(model: onnx.ModelProto, opset: int, name: str) -> None:
    """Refuse functions that mean other versions of operators than the model: they would be written out as its own."""
    for function in model.functions:
        own = next((int(o.version) for o in function.opset_import if o.domain in MAIN_DOMAINS), opset)
        for node in function.node:
            known = all(onnx.defs.has(node.op_type, max_inclusive_version=v) for v in (own, opset))
            if node.domain not in MAIN_DOMAINS or not known:
                continue
            versions = [schemas.signature(node.op_type, v).version for v in (own, opset)]
            if versions[0] != versions[1]:
                raise UnsupportedError(
                    f"the function {function.name} is of operator set {own}, the model of {opset}",
                    where=name,
                    why=f"{node.op_type} is version {versions[0]} of itself in one and {versions[1]} in the other",
                    fix="convert the model with onnx.version_converter or export it again",
                )


def refuse_unknown(nodes: Iterable[onnx.NodeProto], name: str, declared: Mapping[str, Operator], opset: int) -> None:
    """Name every operator without a translation at once."""
    unknown: dict[str, str] = {}
    for proto in nodes:
        if proto.domain == DECLARED_DOMAIN and proto.op_type in declared and len(proto.output) == 1:
            continue
        if contrib.has(proto, opset):
            continue
        if proto.domain not in MAIN_DOMAINS:
            unknown.setdefault(f"{proto.domain}.{proto.op_type}", label_of(proto))
        elif proto.op_type not in (*TRANSLATORS, *_ONLY_KNOWN, *functions.operators_with_bodies()):
            unknown.setdefault(proto.op_type or "without a name", label_of(proto))
    if not unknown:
        return
    flow = [op for op in unknown if op in _CONTROL_FLOW]
    many = "s" if len(unknown) > 1 else ""
    raise UnsupportedError(
        f"no translation for the operator{many} {', '.join(unknown)}",
        where=f"{name}, node {next(iter(unknown.values()))!r}",
        why=f"{', '.join(flow)} is control flow, and a program has none" if flow else "",
        fix="split the model there" if not flow else "export the model with the branch or the loop resolved",
    )


def external(tensor: onnx.TensorProto, name: str, directory: Path | None) -> tuple[Path, int, int | None] | None:
    """Where a tensor lies in another file, if it does: the file, the place in it, and how many bytes if that is said.

    Raises:
        ModelError: the file is not there, or not what the model says.
    """
    if not external_data_helper.uses_external_data(tensor):
        return None
    where = f"{name}, initialiser {tensor.name!r}"
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    file = f"the external data file {location!r}"
    if not location:
        raise ModelError("no external data file is named", where=where, fix="export the model again")

    def refused(what: str, why: str, fix: str) -> ModelError:
        return ModelError(what, where=where, why=why, fix=fix)

    if directory is None or not os.path.lexists(directory / location):
        raise refused(
            f"{file} is missing", "the model keeps this tensor in another file", "put that file beside the model"
        )
    path = directory / location
    if path.is_symlink():
        why = "what a model names is read in its own folder only"
        raise refused(f"{file} is a symbolic link", why, "put the file itself there: copy the folder with cp -rL")
    if not path.is_file():
        raise refused(f"{file} cannot be read", "it is not a regular file", "put the file itself there")
    try:
        offset, length = (int(entries.get(key, 0)) for key in ("offset", "length"))
    except ValueError:
        offset = length = -1
    if offset < 0 or length < 0:
        why = "its offset and length are not both whole numbers that are not negative"
        raise refused(f"the place of the tensor in {file} cannot be read", why, "export it again")
    needed = offset + (length if "length" in entries else bytes_of(tensor) or 0)
    if path.stat().st_size < needed:
        raise refused(
            f"{file} is too short", f"it has {path.stat().st_size} bytes of {needed}", "copy or export it again"
        )
    return path, offset, length if "length" in entries else None


def load_external(tensor: onnx.TensorProto, name: str, directory: Path | None) -> None:
    """Read a tensor that lies in another file, if it does; errors are those of `external`, and of onnx's loader."""
    found = external(tensor, name, directory)
    if found is None:
        return
    try:
        external_data_helper.load_external_data_for_tensor(tensor, str(directory))
    except MemoryError:  # the machine's, not the model's
        raise
    except Exception as error:  # a path that leaves the directory, a link, a device: onnx refuses each in its way
        raise ModelError(
            f"the external data file {found[0].name!r} cannot be read",
            where=f"{name}, initialiser {tensor.name!r}",
            why=str(error),
            fix="export it again",
        ) from None
    # Older releases of onnx leave this to their loader of whole models, and would read the file again.
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def files_beside(data: bytes, directory: Path) -> tuple[tuple[object, ...], ...]:
    """The files in which a model keeps tensors, and what the file system says of each: another one says otherwise.

    What is written anew has another time of change, which nobody sets, whatever else is kept of it.

    Raises:
        OSError: a file is missing.
        ModelError: the model is damaged.
    """
    found = []
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        _refuse_bytes(data, directory)
    for location in sorted({e.value for t in model.graph.initializer for e in t.external_data if e.key == "location"}):
        said = (directory / location).stat()
        found.append((location, said.st_dev, said.st_ino, said.st_size, said.st_mtime_ns, said.st_ctime_ns))
    return tuple(found)


def _names(*extents: Extent) -> set[str]:
    """The symbols of extents."""
    return {s.name for e in extents if not is_static(e) for s in e.free_symbols}  # type: ignore[union-attr]


def _dimensions(passed: Iterable[onnx.ValueInfoProto], equal: Mapping[str, Extent]) -> dict[str, Extent]:
    """What each name of an input's dimension stands for, in symbols that the inputs' shapes say.

    Of `n*m`, or of `floor(n/5) - 1`, where nothing else says what `n` is, only the product and the rounded size are
    known: they are symbols of their own.
    """
    scratch = Graph(equal=equal)
    dims = [d for i in passed for d in i.type.tensor_type.shape.dim if name_of(d) and not d.HasField("dim_value")]
    found = {d.dim_param: sympy.sympify(_extent(scratch, d.dim_param)) for d in dims}
    while True:
        known = told(found.values())
        left = {t: e for t, e in found.items() if e.free_symbols - known}
        rounded = {r for e in left.values() for r in e.atoms(sympy.floor, sympy.ceiling) if r.free_symbols - known}
        own = {r: str(r) for r in sorted(rounded, key=str)} or {e: t for t, e in left.items()}
        new = {e: sympy.sympify(_symbol(scratch, name)) for e, name in own.items()}
        before, found = found, {t: e.xreplace(new) if t in left else e for t, e in found.items()}
        if found == before:
            return {t: normal(e) for t, e in found.items()}


def _input(graph: Graph, info: onnx.ValueInfoProto, name: str, known: Mapping[str, Extent]) -> OnnxValue:
    where = f"{name}, input {info.name!r}"
    if not info.type.HasField("tensor_type"):
        raise UnsupportedError("an input that is not a tensor", where=where, fix="export it as tensors")
    kind = info.type.tensor_type
    dtype = dtype_of(kind.elem_type, where)
    if not kind.HasField("shape"):
        raise UnsupportedError(
            "an input without a shape", where=where, why="not even its rank is known", fix="export it with shapes"
        )
    shape = tuple(
        _dimension(graph, dim, f"{identifier(info.name)}_d{d}", known) for d, dim in enumerate(kind.shape.dim)
    )
    _refuse_unaddressable(shape, dtype, where)
    return graph.declare(info.name, shape, dtype)


def _refuse_unaddressable(shape: Iterable[Extent], dtype: DType, where: str) -> None:
    """Refuse a tensor of more bytes than any machine can number; symbols count as one."""
    size = math.prod(int(e) for e in shape if is_static(e)) * dtype.bytes
    if size > _ADDRESSABLE:
        raise ShapeError(
            "the tensor is larger than any memory",
            where=where,
            why=f"{dtype.value} {[str(e) for e in shape]} takes at least 2^{size.bit_length() - 1} bytes",
            fix="check its shape, or export the model again",
        )


def name_of(dim: onnx.TensorShapeProto.Dimension) -> str:
    """What the model calls a dimension; nothing where that says nothing, as all may be "?", or "-1"."""
    return dim.dim_param if any(map(str.isalpha, dim.dim_param)) else ""


def _dimension(
    graph: Graph, dim: onnx.TensorShapeProto.Dimension, fallback: str, known: Mapping[str, Extent]
) -> Extent:
    """A dimension as an extent: a number, what its name stands for, or a symbol that is called by the fallback."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:  # some exporters write -1 for an unknown one
        return int(dim.dim_value)
    name = name_of(dim)
    extent = known[name] if name in known else _extent(graph, name or fallback)
    for s in () if is_static(extent) else sorted(extent.free_symbols, key=str):  # type: ignore[union-attr]
        _symbol(graph, s.name)
    if not isinstance(extent, sympy.Symbol):
        graph.require(add(extent, -1))
    return extent


def _extent(graph: Graph, text: str) -> Extent:
    """A dimension's name as an extent: a named symbol, arithmetic on such, or a symbol of its own."""
    try:
        found = sympy.sympify(from_text(text))
    except ExtentError:
        return _symbol(graph, text)
    if not found.is_integer:
        return _symbol(graph, text)
    names = sorted(s.name for s in found.free_symbols)
    return normal(found.xreplace({symbol(name): sympy.sympify(_symbol(graph, name)) for name in names}))


def _symbol(graph: Graph, name: str) -> Extent:
    safe = identifier(name)
    if safe in graph.equal:
        found = graph.equal[safe]
        for s in () if is_static(found) else found.free_symbols:  # type: ignore[union-attr]
            _symbol(graph, s.name)
        return found
    if safe not in graph.ranges:
        batch = "batch" in safe.lower()
        graph.ranges[safe] = replace(SYMBOL_RANGE, hint=BATCH_HINT) if batch else SYMBOL_RANGE
        graph.reserve(safe)
    return symbol(safe)


def _is_if(proto: onnx.NodeProto) -> bool:
    return proto.op_type == "If" and proto.domain in MAIN_DOMAINS


def label_of(proto: onnx.NodeProto) -> str:
    """The node as the user knows it."""
    return proto.name or f"{proto.op_type} {next((o for o in proto.output if o), '')}".strip()


def _check(proto: onnx.NodeProto, name: str, context: Any) -> None:
    """Check the node against its operator's schema, so that translators may trust its attributes."""
    if _is_deprecated(proto.op_type, context.opset_imports[""]):
        return  # GroupNormalization of 18 to 20: files hold it, and what it means is settled
    try:
        checker.check_node(proto, context)
        why = _left_out(proto, context.opset_imports.get(proto.domain, 0))
    except (checker.ValidationError, ValueError) as error:
        why = str(error).split("\n")[0]
    if why:
        raise ModelError(
            f"the node is not a legal {proto.op_type}",
            where=f"{name}, node {label_of(proto)!r}",
            why=why,
            fix="export the model again",
        )


def _left_out(proto: onnx.NodeProto, version: int) -> str:
    """Which operand is left out that has to be there, in words: onnx's checker counts them without a look."""
    if not onnx.defs.has(proto.op_type, version, proto.domain):
        return ""
    schema = onnx.defs.get_schema(proto.op_type, version, proto.domain)
    for formal, given in zip(schema.inputs, proto.input, strict=False):
        if not given and formal.option == onnx.defs.OpSchema.FormalParameterOption.Single:
            return f"its operand {formal.name!r} is left out"
    return ""


@cache
def _is_deprecated(op: str, version: int) -> bool:
    return onnx.defs.has(op, version) and onnx.defs.get_schema(op, version).deprecated


def undefined(operand: str, where: str, later: str | None) -> ModelError:
    """A node reads what no node before it computes; `later` is one after it that does, or it itself."""
    after = f"node {later!r} computes it, which does not come before: the nodes go round in a circle"
    return ModelError(
        f"the operand {operand!r} is defined nowhere before",
        where=where,
        why="" if later is None else after,
        fix="check the model with onnx.checker",
    )


def _operands(
    proto: onnx.NodeProto, where: str, values: Mapping[str, OnnxValue], producers: Mapping[str, str]
) -> tuple[OnnxValue | None, ...]:
    """What is known of each operand; None for one that is left out."""
    for i in proto.input:
        if i and i not in values:
            raise undefined(i, where, producers.get(i))
    return tuple(values[i] if i else None for i in proto.input)


def _node(
    proto: onnx.NodeProto,
    name: str,
    signature: Signature | None,
    values: dict[str, OnnxValue],
    producers: Mapping[str, str] = MappingProxyType({}),
) -> Node:
    """The node with its operands.

    The signature is its operator's; None where the user declares it. `producers` has by result the node of the model
    that computes it.
    """
    label = label_of(proto)
    where = f"{name}, node {label!r}" + ("" if proto.op_type in label else f" ({proto.op_type})")
    for o in proto.output:
        if o and o in values:
            raise ModelError(f"the result {o!r} is defined twice", where=where, fix="check the model with onnx.checker")
    inputs = _operands(proto, where, values, producers)
    attributes: dict[str, Any] = {}
    if signature is not None:
        attributes.update(signature.defaults)
    for a in proto.attribute:
        value = helper.get_attribute_value(a)
        if isinstance(value, onnx.TensorProto):
            dtype = dtype_of(value.data_type, where)
            value = constant(array_of(value, where), dtype, label)
        attributes[a.name] = value.decode() if isinstance(value, bytes) else value
    if signature is not None and proto.op_type == "ConstantOfShape" and "value" not in attributes:
        attributes["value"] = _number(0.0, DType.FLOAT32, label)
    version = 0 if signature is None else signature.version
    return Node(proto.op_type, label, where, version, inputs, tuple(proto.output), Given(attributes))


def _known_shape(value: OnnxValue) -> list[int | None]:
    return [int(e) if is_static(e) else None for e in value.shape]


def _number(values: Any, dtype: DType, label: str) -> OnnxValue:
    return constant(np.asarray(values, dtype=dtype.value), dtype, label)


def _constant_node(graph: Graph, node: Node) -> OnnxValue:
    for key, value in node.attributes.items():
        match key:
            case "value":
                assert isinstance(value, OnnxValue)
                return replace(value, label=node.outputs[0])
            case "value_float" | "value_floats":
                return _number(value, DType.FLOAT32, node.outputs[0])
            case "value_int" | "value_ints":
                return _number(value, DType.INT64, node.outputs[0])
    raise node.unsupported(f"a constant given as {', '.join(node.attributes) or 'nothing'} is not supported")


def _translate(graph: Graph, node: Node, signature: Signature) -> Sequence[OnnxValue]:
    """The node's results: known elements where its operands are known, else what its translator makes of it."""
    if node.op == "Constant":
        return [_constant_node(graph, node)]
    reader = node.afresh()  # what folding looks at says nothing of what the translator does
    folded = fold.fold(reader)
    if folded is not None:
        schemas.check_all_read(reader, signature.defaults, len(folded))
        if node.op in _ONLY_KNOWN or (node.op != "Range" and not any(_varies(v) for v in node.inputs)):
            return _known(node, folded)
    if node.op in _ONLY_KNOWN:
        raise node.unsupported("its result is not known", why="it depends on data")
    try:
        results = TRANSLATORS[node.op](graph, node)
        schemas.check_all_read(node, signature.defaults, len(results))
    except UnsupportedError:
        if folded is None:
            raise
        return _known(node, folded)
    if folded is None:
        return results
    return [replace(v, elements=e) for v, e in zip(results, folded, strict=False)]


def _varies(value: OnnxValue | None) -> bool:
    """Whether it is a formula that says more than its elements do: positions, whose masks are to stay predicates."""
    return value is not None and value.formula is not None and as_extent(value.formula) is None


def _known(node: Node, folded: Sequence[Any]) -> list[OnnxValue]:
    dtype = fold.folded_dtype(node)
    labels = [*node.outputs, *[node.label] * len(folded)]
    return [OnnxValue(tuple(e.shape), dtype, label=label, elements=e) for e, label in zip(folded, labels, strict=False)]


def _finish(graph: Graph, outputs: Iterable[onnx.ValueInfoProto], values: dict[str, OnnxValue], name: str) -> Program:
    """The program of what the outputs need."""
    names: list[str] = []
    defined = {d.name for d in graph.definitions}
    taken: set[str] = set()
    for info in outputs:
        if info.name not in values:
            raise ModelError(f"the output {info.name!r} is defined nowhere", where=name, fix="export the model again")
        value = values[info.name]
        _check_output(info, value, name)
        _refuse_unaddressable(value.shape, value.dtype, f"{name}, output {info.name!r}")
        if value.tensor not in defined or value.tensor in taken:
            axes = axes_of(value.shape)
            expr = graph.read(value, axes)
            origin = f"output {info.name}"
            value = graph.define_tensor(info.name, axes, expr, value.dtype, origin=origin, view=isinstance(expr, Read))
        names.append(value.tensor)
        taken.add(value.tensor)
    needed = set(names)
    kept = []
    for d in reversed(graph.definitions):
        if d.name in needed:
            kept.append(d)
            needed |= {e.tensor for e in walk(d.expr) if isinstance(e, Read)}
    inputs = tuple(t for t in graph.inputs if t.name not in graph.weights or t.name in needed)
    weights = {t.name: graph.weights[t.name] for t in inputs if t.name in graph.weights}
    title, definitions = identifier(Path(name).stem), tuple(reversed(kept))
    try:
        return _fitting(without_empty(Program(title, inputs, definitions, tuple(names), dict(graph.ranges), weights)))
    except ModelError as error:
        raise error.at(f"{name}, {error.where}") from None


def _fitting(program: Program) -> Program:
    """The program with hints that can be run: lengths of several symbols are multiplied."""
    shapes = {t.shape for t in (*program.inputs, *(program.tensor(d.name) for d in program.definitions))}
    open_shapes = {tuple(e for e in t.shape if not is_static(e)) for t in program.arguments}
    while (longest := max((r.hint for r in program.ranges.values() if r.hint > r.low), default=1)) > 1 and (
        most_elements(shapes, program.hints) > LARGEST_HINTED or most_elements(open_shapes, program.hints) > MOST_PLACES
    ):
        ranges = {n: replace(r, hint=max(r.low, min(r.hint, longest // 2))) for n, r in program.ranges.items()}
        program = program.over(ranges)
    return program


def _check_output(info: onnx.ValueInfoProto, value: OnnxValue, name: str) -> None:
    """Compare the type and the shape that the file states for an output with those that follow from its nodes."""
    kind = info.type.tensor_type
    if kind.elem_type and dtype_of(kind.elem_type, f"{name}, output {info.name!r}") != value.dtype:
        raise ModelError(
            f"the output is of type {value.dtype.value}",
            where=f"{name}, output {info.name!r}",
            why=f"the file states {dtype_of(kind.elem_type, name).value}",
            fix="export the model again",
        )
    if not kind.HasField("shape"):
        return
    stated: list[Extent | None] = [int(d.dim_value) if d.HasField("dim_value") else None for d in kind.shape.dim]
    fits = len(stated) == value.rank and all(
        s is None or not is_static(e) or same_extent(s, e) for s, e in zip(stated, value.shape, strict=True)
    )
    if not fits:
        raise ShapeError(
            f"the output has shape {[str(e) for e in value.shape]}",
            where=f"{name}, output {info.name!r}",
            why=f"the file states {['?' if s is None else s for s in stated]}",
            fix="export the model again",
        )


TRANSLATORS: Mapping[str, Translator] = MappingProxyType(
    {
        **{op: single(f) for op, f in pointwise.TRANSLATORS.items()},
        **{op: single(f) for op, f in reduce.TRANSLATORS.items()},
        **{op: single(f) for op, f in linear.TRANSLATORS.items()},
        **views.TRANSLATORS,
        **norms.TRANSLATORS,
        **attention.TRANSLATORS,
        **choose.TRANSLATORS,
        **scatter.TRANSLATORS,
        **order.TRANSLATORS,
        **windows.TRANSLATORS,
        **resize.TRANSLATORS,
        **spectra.TRANSLATORS,
        **recurrent.TRANSLATORS,
        **quantized.TRANSLATORS,
    }
)
