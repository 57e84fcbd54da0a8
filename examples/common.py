"""What the example scripts share: the two ways to make a model (torch's exporter, ONNX's helper) and where it goes."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import onnx

Array: TypeAlias = npt.NDArray[Any]

Spec: TypeAlias = tuple[int, Sequence[int | str]]
"""Element type (`TensorProto.FLOAT`, ...) and shape; a string is a symbolic dimension."""

MODELS = Path(__file__).parent / "models"
"""The folder of the ONNX files."""

_NOT_EXAMPLES = frozenset({"__init__", "__main__", "common"})


class Example(Protocol):
    """What every example script defines."""

    def build(self) -> onnx.ModelProto:
        """The model."""

    def inputs(self, rng: np.random.Generator) -> dict[str, Array]:
        """One draw of the model's inputs, in its data types, at small sizes of its symbolic dimensions."""

    def formula(self, feed: Mapping[str, Array]) -> Array:
        """The output in float64, computed from the formula rather than from the model."""


def names() -> list[str]:
    """The names of the examples."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.py") if p.stem not in _NOT_EXAMPLES)


def load_example(name: str) -> Example:
    """The script of that name, as a module."""
    return cast(Example, importlib.import_module(f"examples.{name}"))


def save(model: onnx.ModelProto, name: str) -> Path:
    """Check the model and write it to `examples/models/NAME.onnx`."""
    onnx.checker.check_model(model, full_check=True)
    MODELS.mkdir(exist_ok=True)
    path = MODELS / f"{name}.onnx"
    onnx.save(model, path)
    return path


def helper_model(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Spec],
    outputs: Mapping[str, Spec],
    *,
    opset: int,
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A model from nodes written by hand.

    Args:
        name: the graph's name.
        nodes: in an order in which each reads only what is known.
        inputs: element type and shape by name, in order.
        outputs: likewise.
        opset: the version of the default operator set.
        initializers: the model's constants.
    """
    values = [
        [onnx.helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in group.items()]
        for group in (inputs, outputs)
    ]
    graph = onnx.helper.make_graph(list(nodes), name, values[0], values[1], list(initializers))
    opsets = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(
        graph,
        opset_imports=opsets,
        ir_version=onnx.helper.find_min_ir_version_for(opsets),
        producer_name="prism-examples",
    )


def torch_model(
    name: str,
    module: Any,
    args: Mapping[str, Any],
    *,
    dynamic: Mapping[str, Mapping[int, str]],
    opset: int,
) -> onnx.ModelProto:
    """A model as `torch.onnx.export` writes it.

    Args:
        name: the graph's name.
        module: a torch module, or a function of tensors.
        args: example inputs by name, in order; no two the same tensor, or the exporter takes them for one input.
        dynamic: for each input that has some, its symbolic dimensions.
        opset: the version of the default operator set.
    """
    import torch

    class Wrapped(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return cast(Callable[..., torch.Tensor], module)(*tensors)

    dims = {symbol: torch.export.Dim(symbol) for d in dynamic.values() for symbol in d.values()}
    shapes = tuple({axis: dims[symbol] for axis, symbol in dynamic.get(n, {}).items()} for n in args)
    target = module if isinstance(module, torch.nn.Module) else Wrapped()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        exported = torch.onnx.export(
            target.eval(),
            tuple(args.values()),
            input_names=list(args),
            output_names=["out"],
            dynamic_shapes=shapes if isinstance(module, torch.nn.Module) else (shapes,),
            opset_version=opset,
            dynamo=True,
            verbose=False,
        )
    if exported is None:
        raise RuntimeError(f"{name}: torch.onnx.export returned nothing")
    model: onnx.ModelProto = exported.model_proto
    model.graph.name = name
    _strip_metadata(model)
    return model


def _strip_metadata(model: onnx.ModelProto) -> None:
    """Drop the exporter's stack traces: they name the folders of the machine it ran on, and mean nothing."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0, dtype: npt.DTypeLike = np.float32) -> Array:
    """Normal draws, signed, in that data type."""
    return np.asarray(scale * rng.standard_normal(shape), dtype=dtype)


def wide(x: Array) -> npt.NDArray[np.float64]:
    """The array in float64."""
    return x.astype(np.float64)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow."""
    result: Array = np.exp(-np.logaddexp(0.0, -x))
    return result


def softmax(x: Array) -> Array:
    """Softmax over the last axis."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    result: Array = e / e.sum(axis=-1, keepdims=True)
    return result


def rms_norm(x: Array, scale: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * scale, over the last axis."""
    result: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * scale
    return result
