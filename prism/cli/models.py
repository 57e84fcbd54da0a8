"""The argument that is a model: that its file is there is told before anything that takes its time is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prism.contents import check_readable


def _check(_: object, given: Path | None) -> None:
    if given is not None:
        check_readable(given)


Model = Annotated[Path, Parameter(validator=_check)]
"""An ONNX file that a command takes."""
