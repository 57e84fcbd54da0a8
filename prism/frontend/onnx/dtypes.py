"""ONNX element types as the program's, and constant arrays as numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, numpy_helper

from prism.errors import ModelError, UnsupportedError
from prism.frontend.onnx.graph import MAX_ELEMENTS, OnnxValue
from prism.program import build
from prism.program.index import Index
from prism.program.nodes import Const, DType
from prism.program.views import axes_of, places_index

_OTHERWISE_NAMED: Mapping[DType, str] = {DType.FLOAT64: "DOUBLE", DType.FLOAT32: "FLOAT"}
_DTYPES: Mapping[int, DType] = MappingProxyType(
    {TensorProto.DataType.Value(_OTHERWISE_NAMED.get(d, d.name)): d for d in DType}
)


_CARRIERS: Mapping[int, DType] = MappingProxyType(
    {
        TensorProto.INT4: DType.INT8,
        TensorProto.UINT4: DType.UINT8,
        TensorProto.UINT16: DType.INT32,
        TensorProto.UINT32: DType.INT64,
    }
    # Of onnx's newer versions; of floats of 8 and 4 bits every one is a number of more bits.
    | {
        number: dtype
        for name, dtype in (
            ("INT2", DType.INT8),
            ("UINT2", DType.UINT8),
            *((f"FLOAT8E{kind}", DType.FLOAT16) for kind in ("4M3FN", "4M3FNUZ", "5M2", "5M2FNUZ")),
            ("FLOAT4E2M1", DType.FLOAT16),
            ("FLOAT8E8M0", DType.FLOAT32),
        )
        if (number := dict(TensorProto.DataType.items()).get(name)) is not None
    }
)
"""What holds all values of a type that the program does not have."""
CONVERTING = frozenset({"DequantizeLinear", "Cast"})
"""Operators to which only an operand's values matter, and not which type holds them."""

_ELEMENTS: Mapping[DType, int] = MappingProxyType({dtype: element for element, dtype in _DTYPES.items()})


def element_type(dtype: DType) -> int:
    """ONNX's element type for one of the program's."""
    return _ELEMENTS[dtype]


def dtype_of(element_type: int, where: str) -> DType:
    """The program's type for an ONNX element type. Raises UnsupportedError: there is none."""
    if element_type in _DTYPES:
        return _DTYPES[element_type]
    known = element_type in TensorProto.DataType.values()
    name = TensorProto.DataType.Name(element_type).lower() if known else f"number {element_type}"
    raise UnsupportedError(
        f"the data type {name} is not supported",
        where=where,
        why="prism takes " + ", ".join(d.value for d in _DTYPES.values()),
        fix="export the model in float32, float16 or bfloat16",
    )


def bytes_of(tensor: TensorProto) -> int | None:
    """How many bytes the elements of a tensor take; None of types that have no counterpart, and of no legal shape."""
    if tensor.data_type not in _DTYPES or any(n < 0 for n in tensor.dims):
        return None
    return math.prod(map(int, tensor.dims)) * _DTYPES[tensor.data_type].bytes


def is_own(element_type: int) -> bool:
    """Whether the program has the type itself."""
    return element_type in _DTYPES


def held_as(element_type: int, readers: AbstractSet[str], where: str) -> DType:
    """The type in which a constant of the model is held for the operators that read it.

    Raises:
        UnsupportedError: there is none.
    """
    carried = element_type in _CARRIERS and readers <= CONVERTING
    return _CARRIERS[element_type] if carried else dtype_of(element_type, where)


def array_of(tensor: TensorProto, where: str, dtype: DType | None = None) -> npt.NDArray[Any]:
    """The values of a tensor that the model holds; bfloat16 as float32.

    `dtype` holds them, from `held_as`; by default what is as its own type.

    Raises:
        UnsupportedError: its data type has no counterpart.
        ModelError: the values are not there in full.
    """
    own, dtype = dtype, dtype or dtype_of(tensor.data_type, where)
    try:
        if any(n < 0 for n in tensor.dims):
            raise ValueError(f"its shape is {list(tensor.dims)}")
        array = numpy_helper.to_array(tensor)
    except Exception as error:  # onnx raises whatever numpy does on missing or extra bytes
        why, needed = str(error), bytes_of(tensor)
        if needed is not None and tensor.HasField("raw_data"):
            why = f"it has {len(tensor.raw_data)} bytes, and {dtype.value} {list(tensor.dims)} takes {needed}"
        raise ModelError(
            f"the constant {tensor.name!r} cannot be read", where=where, why=why, fix="export the model again"
        ) from None
    if own is not None and tensor.data_type in _CARRIERS:
        return array.astype(own.value)
    return array.astype(np.float32) if dtype == DType.BFLOAT16 else array


def constant(array: npt.NDArray[Any], dtype: DType, label: str) -> OnnxValue:
    """A constant of the model: a number, a position, known integers, or an array that is read as an input."""
    exact = not dtype.is_float
    elements = None
    if exact and array.size <= MAX_ELEMENTS:
        elements = np.empty(array.shape, dtype=object)
        for place in np.ndindex(array.shape):
            elements[place] = int(array[place])
    axes = axes_of(array.shape)
    value = OnnxValue(tuple(array.shape), dtype, axes=axes, array=array, label=label, elements=elements)
    # A uniform array of floats stays an array: weights that were never trained are weights all the same.
    if array.size == 1 or (exact and array.size > 1 and bool(np.all(array == array.flat[0]))):
        return replace(value, formula=Const(float(array.flat[0])))
    index = places_index(elements, [*map(Index.axis, axes)]) if elements is not None and elements.size > 2 else None
    if index is None or dtype == DType.BOOL:
        return value
    return replace(value, formula=build.position(index))
