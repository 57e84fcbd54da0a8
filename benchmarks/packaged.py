"""Models that come inside installed packages: every ONNX file that a distribution lists.

What `benchmarks/models.py --packaged` takes. onnx itself ships nine nets of convolutions and some 140 small models of
its conformance suite, onnxruntime three; any other package's files are taken as well.

The nets (`light_*`) hold one number for all elements of a weight, so that they are small: whole layers of them are
constants. Random weights stand in their place here.
"""

from __future__ import annotations

from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnx

NET = 10
"""The least operators of a model that is worth optimising; smaller ones are read alone."""
FREE = 4
"""What a free dimension is."""


def files() -> dict[str, Path]:
    """By name: a file's own, or its folder's where it is one of many `model.onnx`; the package where two are alike."""
    found: dict[str, Path] = {}
    for package in sorted(distributions(), key=lambda d: d.name or ""):
        for listed in sorted(f for f in package.files or () if f.suffix == ".onnx"):
            name = listed.parent.name if listed.stem == "model" else listed.stem
            found[f"{package.name}.{name}" if name in found else name] = Path(str(package.locate_file(listed)))
    return found


def nets() -> list[str]:
    """Names of those that are worth optimising."""
    import onnx

    return [n for n, f in files().items() if len(onnx.load(f, load_external_data=False).graph.node) >= NET]


def write(name: str, file: Path) -> None:
    """Write the model, with random weights where it holds one number for all."""
    import onnx

    model = onnx.load(files()[name])
    if name.startswith("light_"):
        fill(model)
    onnx.save(model, file)


def fill(model: onnx.ModelProto) -> None:
    """Random weights for every tensor of floats that is one number at all places of a shape that is known.

    Those of several dimensions keep what goes through them as large as it was (He et al., 2015), all others are within
    0.5 and 1.5, as a variance may be one.
    """
    from onnx import numpy_helper

    draw = np.random.default_rng(0)
    known = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    for node in [n for n in model.graph.node if n.op_type == "ConstantOfShape" and n.input[0] in known]:
        shape = tuple(int(n) for n in known[node.input[0]])
        if [a.t.data_type for a in node.attribute] not in ([], [1]):  # of floats; they are, where none says
            continue
        many = int(np.prod(shape[1:]))
        drawn = draw.standard_normal(shape) * (2 / many) ** 0.5 if len(shape) > 1 else draw.uniform(0.5, 1.5, shape)
        model.graph.initializer.append(numpy_helper.from_array(drawn.astype(np.float32), node.output[0]))
        model.graph.node.remove(node)


def inputs(name: str, model: onnx.ModelProto) -> dict[str, Any]:
    """What the model is called with: the data beside its file, or random numbers.

    Raises:
        TypeError: it takes what is no tensor of numbers, and no data is there.
    """
    import onnx
    from onnx import TensorProto, helper

    weights = {i.name for i in model.graph.initializer}
    taken = [i for i in model.graph.input if i.name not in weights]
    data = sorted(files()[name].parent.glob("test_data_set_0/input_*.pb"), key=lambda f: int(f.stem.split("_")[-1]))
    if data:
        return {i.name: value(f, i.type) for f, i in zip(data, taken, strict=False)}
    draw = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for i in taken:
        tensor = i.type.tensor_type
        if tensor.elem_type in (TensorProto.UNDEFINED, TensorProto.STRING):
            raise TypeError(f"input {i.name} is no tensor of numbers: {onnx.printer.to_text(i)}")
        shape, dtype = (
            [d.dim_value or FREE for d in tensor.shape.dim],
            helper.tensor_dtype_to_np_dtype(tensor.elem_type),
        )
        drawn = draw.standard_normal(shape) if dtype.kind == "f" else draw.integers(0, 2, shape)
        found[i.name] = drawn.astype(dtype)
    return found


def value(file: Path, kind: onnx.TypeProto) -> Any:
    """An input that was written to a file, as onnxruntime takes it."""
    import onnx
    from onnx import numpy_helper

    data = file.read_bytes()
    match kind.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
        case "optional_type":
            return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))
