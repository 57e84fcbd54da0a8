"""A study's trials on disk: an Optuna study in a journal file, which Optuna's own tools can open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from prism.errors import UsageError
from prism.instantiate.proposals import Point, Proposer, quiet


class OptunaJournal:
    """The journal of one study.

    Args:
        folder: where journals are kept; made when it is missing.
        name: the study's name, which names everything that its outcomes depend on.
        proposer: knows the points as Optuna's parameters.
        anew: whether an earlier journal of that name is forgotten.

    Raises:
        UsageError: the folder cannot be written.
    """

    def __init__(self, folder: Path, name: str, proposer: Proposer, *, anew: bool = False) -> None:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        quiet()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if anew:
                (folder / f"{name}.log").unlink(missing_ok=True)
            storage = JournalStorage(JournalFileBackend(str(folder / f"{name}.log")))
        except OSError as e:
            raise UsageError("the tuning journal cannot be written", where=str(folder), why=str(e)) from e
        self._study = optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
        self._proposer = proposer

    def load(self) -> Iterable[tuple[str, Mapping[str, object]]]:
        """What was recorded, in order."""
        for t in self._study.get_trials(deepcopy=False):
            if "point" in t.user_attrs:
                yield str(t.user_attrs["point"]), json.loads(t.user_attrs["outcome"])

    def append(self, key: str, point: Point, outcome: Mapping[str, object], seconds: float | None) -> None:
        """Record one trial."""
        text = json.dumps(outcome, sort_keys=True)
        self._study.add_trial(self._proposer.frozen(point, seconds, {"point": key, "outcome": text}))
