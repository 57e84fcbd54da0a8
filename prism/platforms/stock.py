"""Models as onnxruntime runs them on this CPU: what a whole model is compared with."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prism.errors import ModelError, UsageError

EXTRA = "pip install 'prism-superopt[models]'"


class NotRunError(Exception):
    """The model does not take these inputs."""


def check_installed(where: str) -> None:
    """Make sure that onnxruntime is here. Raises UsageError: it is not."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise UsageError(
            "onnxruntime is not installed",
            where=where,
            why="the model holds operators that prism has no translation for, and onnxruntime runs those",
            fix=f"{EXTRA} (or pip install onnxruntime)",
        )


class Stock:
    """A model in onnxruntime.

    Args:
        model: the file, or its bytes.
        where: the model as the user knows it.
        optimised: whether onnxruntime may rewrite it.
        threads: how many it runs on; 0 for as many as there are cores.

    Raises:
        ModelError: onnxruntime does not take it.
    """

    def __init__(self, model: Path | bytes, where: str, *, optimised: bool = True, threads: int = 0) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        if not optimised:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self._session = ort.InferenceSession(
                model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # of kinds that onnxruntime makes up as it goes
            # Valid operators that it has no kernel for are nearly always of opsets that it dropped.
            old = "NOT_IMPLEMENTED" in str(error)
            raise ModelError(
                "onnxruntime does not take the model",
                where=where,
                why=" ".join(str(error).split())[:300],
                fix="convert it with onnx.version_converter or export it again, at opset 18 for instance"
                if old
                else "check it with onnx.checker.check_model(path, full_check=True)",
            ) from None
        self.outputs = [o.name for o in self._session.get_outputs()]

    def run(self, values: Mapping[str, Any], takes: Sequence[str]) -> dict[str, Any]:
        """The outputs by name. Raises NotRunError: it cannot be run on these."""
        try:
            found = self._session.run(None, {n: values[n] for n in takes})
        except Exception as error:
            raise NotRunError(" ".join(str(error).split())[:300]) from None
        return {n: np.asarray(x) if isinstance(x, np.generic) else x for n, x in zip(self.outputs, found, strict=True)}
