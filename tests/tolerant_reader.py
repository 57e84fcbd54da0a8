"""The torch reader for many functions in one export, of which some are refused."""

from __future__ import annotations

from typing import Any

import torch

from prism.errors import IllegalIRError, PrismError
from prism.frontend.torch import reader


def flat(result: Any) -> list[Any]:
    """The outputs of a function, one after the other."""
    return list(reader._flat(tuple(result) if isinstance(result, (tuple, list)) else result))


class _Spoiled:
    """What a refused node stands for."""

    def __init__(self, error: PrismError) -> None:
        self.error = error


class Tolerant(reader._Translation):
    """A translation in which a refusal spoils what depends on the node, and nothing else.

    Attributes:
        errors: of outputs that are refused, by their places.
        names: of the others.
    """

    def _placeholder(self, node: torch.fx.Node) -> None:
        try:
            super()._placeholder(node)
        except PrismError as error:
            self._values[node] = _Spoiled(error)

    def _call(self, node: torch.fx.Node) -> None:
        spoiled = [s for n in node.all_input_nodes if isinstance(s := self._values.get(n), _Spoiled)]
        if spoiled:
            self._values[node] = spoiled[0]
            return
        try:
            super()._call(node)
        except PrismError as error:
            self._values[node] = _Spoiled(error)
        except Exception as error:
            self._values[node] = _Spoiled(IllegalIRError(f"{type(error).__name__}: {error}"))

    def _outputs(self, node: torch.fx.Node) -> tuple[str, ...]:
        kept: list[torch.fx.Node] = []
        self.errors: dict[int, PrismError] = {}
        self.names: dict[int, str] = {}
        for place, result in enumerate(flat(node.args[0])):
            value = self._values.get(result) if isinstance(result, torch.fx.Node) else None
            if isinstance(value, _Spoiled):
                self.errors[place] = value.error
                continue
            names = self._output(place, result)
            if isinstance(names, PrismError):
                self.errors[place] = names
            else:
                self.names[place] = names
                kept.append(result)
        return tuple(self.names.values())

    def _output(self, place: int, result: Any) -> str | PrismError:
        try:
            (name,) = super()._outputs(_Output(result))  # type: ignore[arg-type]
        except PrismError as error:
            return error
        return name


class _Output:
    """An output node of one result."""

    def __init__(self, result: Any) -> None:
        self.args = ((result,),)
