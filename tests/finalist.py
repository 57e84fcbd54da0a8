"""A finalist of an sGraph that nobody has searched for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prism.api.finalists import Finalist
from prism.api.proofs import ProvedSGraph
from prism.cost.device import Device
from prism.cost.model import Model
from prism.instantiate.options import OPTIONS, Option
from prism.instantiate.space import Space
from prism.instantiate.study import Candidate
from prism.program.verdict import Status, Verdict
from prism.sgraph.denote import Denotation
from prism.sgraph.nodes import SGraph
from prism.sgraph.show import key


def finalist(g: SGraph, target: Device, options: Sequence[type[Option]] = OPTIONS) -> Finalist:
    """With its eight best points, and no module."""
    space, model = Space(g, target, {}, options), Model(g, target, {})
    candidate = Candidate(key(g), g, Path("none"), space.best(model, 8), model.seconds)
    return Finalist(
        ProvedSGraph(g, Verdict(Status.PROVED, "told"), Denotation((), ()), 0.0), candidate, model, space.options
    )


def open_to(space: Space, option: str) -> tuple[str, ...]:
    """The launches that may have an option, at some of their points."""
    return tuple(launch for o in space.options if o.name == option for launch in o.launches)
