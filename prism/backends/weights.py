"""The weights file of an output folder: what the model fixes itself, as `torch.save` writes it."""

from __future__ import annotations

import io

from prism.program.nodes import Program


def weights_bytes(program: Program) -> bytes | None:
    """A dict of the model's weights by name, in the data types of the program's inputs; None when it has none."""
    if not program.weights:
        return None
    import numpy as np
    import torch

    tensors = {}
    for name, value in program.weights.items():
        tensor = torch.from_numpy(np.array(value))
        tensors[name] = tensor.to(getattr(torch, program.tensor(name).dtype.value))
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return buffer.getvalue()
