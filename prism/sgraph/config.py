"""Configurations: an sGraph's symbols and its launches' options, assigned; and what a compiler says of the kernels.

A configuration is written down in one way (`Config.encode`), which emitted modules, workers and manifests take. Lock
files and reports have it flat, caches and journals as a text: both are made here as well, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Chosen: TypeAlias = "frozenset[str] | Mapping[str, int]"
"""The launches that have an option: their names, or a number for each."""

CORE = frozenset(("symbols", "warps", "stages"))
"""What every configuration has, beside its options."""


@dataclass(frozen=True, slots=True)
class Config:
    """One assignment of an sGraph's symbols and of the options of its launches.

    A launch is called as its kernel, or where it is of several kernels as `SGraph.launches` says. What each option
    means, `prism.instantiate.options` says, in a file of its own.

    Raises:
        ValueError: an option is called `symbols`, `warps` or `stages`.
    """

    symbols: Mapping[str, int]  # symbol name to value, for every symbol of the sGraph
    warps: Mapping[str, int]  # launch name to number of warps, of the launches that run a kernel of prism's
    stages: Mapping[str, int]  # launch name to number of software-pipelining stages, likewise
    # Option name to the launches that have it; without those that no launch has. None is called as one of the three
    # above.
    options: Mapping[str, Chosen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if taken := CORE & self.options.keys():
            raise ValueError(f"{', '.join(sorted(taken))}: no options, these have fields of their own")
        made = {n: dict(sorted(c.items())) if isinstance(c, Mapping) else frozenset(c) for n, c in self.options.items()}
        # Names before numbers, and each from z to a: the order of all keys that were ever stored.
        order = sorted(sorted((n for n in made if made[n]), reverse=True), key=lambda n: isinstance(made[n], dict))
        object.__setattr__(self, "options", {n: made[n] for n in order})

    def launches(self, option: str) -> frozenset[str]:
        """The launches that have an option."""
        return frozenset(self.options.get(option, ()))

    def numbers(self, option: str) -> Mapping[str, int]:
        """By launch, the number that it has of an option."""
        found = self.options.get(option, {})
        return found if isinstance(found, Mapping) else dict.fromkeys(sorted(found), 1)

    def having(self, **options: Collection[str]) -> Config:
        """The configuration with these launches, and no others, for these options: names, or numbers by name."""
        made = {n: dict(c) if isinstance(c, Mapping) else frozenset(c) for n, c in options.items()}
        return Config(self.symbols, self.warps, self.stages, {**self.options, **made})

    def renamed(self, symbols: Mapping[str, str], launches: Mapping[str, str]) -> Config:
        """The configuration with other names for its symbols and its launches."""
        made = self.encode()
        found: dict[str, Any] = {"symbols": {symbols[n]: v for n, v in made.pop("symbols").items()}}
        for name, chosen in made.items():
            known = isinstance(chosen, Mapping)
            found[name] = {launches[n]: v for n, v in chosen.items()} if known else [launches[n] for n in chosen]
        return Config.decode(found)

    def of(self, launches: Collection[str]) -> Config:
        """The configuration of these launches alone, with all symbols."""
        found: dict[str, Any] = {"symbols": dict(self.symbols)}
        for name, chosen in self.encode().items():
            if isinstance(chosen, Mapping):
                found.setdefault(name, {n: v for n, v in chosen.items() if n in launches})
            else:
                found[name] = [n for n in chosen if n in launches]
        return Config.decode(found)

    @classmethod
    def together(cls, configs: Iterable[Config]) -> Config:
        """The configuration of the launches of all of them."""
        found: dict[str, Any] = {}
        for c in configs:
            for name, chosen in c.encode().items():
                if isinstance(chosen, Mapping):
                    found.setdefault(name, {}).update(chosen)
                else:
                    found.setdefault(name, []).extend(chosen)
        return cls.decode(found)

    def encode(self) -> dict[str, Any]:
        """The configuration as plain data, as emitted modules take it: dictionaries, and of names alone lists.

        What was written before there was an option is what is written without it.
        """
        core = {"symbols": dict(self.symbols), "warps": dict(self.warps), "stages": dict(self.stages)}
        return core | {n: dict(c) if isinstance(c, Mapping) else sorted(c) for n, c in self.options.items()}

    @classmethod
    def decode(cls, given: Mapping[str, Any]) -> Config:
        """What `encode` wrote."""
        core = [dict(given.get(n, {})) for n in ("symbols", "warps", "stages")]
        others = {n: c for n, c in given.items() if n not in CORE}
        return cls(*core).having(**others)

    def flat(self) -> dict[str, int]:
        """The configuration as one mapping, as lock files and reports have it."""
        return {name: 1 if value is None else value for name, value in self._entries()}

    def key(self) -> str:
        """A canonical text: equal for equal configurations."""
        return " ".join(name if value is None else f"{name}={value}" for name, value in self._entries())

    def _entries(self) -> Iterator[tuple[str, int | None]]:
        """The symbols, then every option of every launch; None stands for what has no number."""
        for option, chosen in self.encode().items():
            for name in sorted(chosen):
                value = int(chosen[name]) if isinstance(chosen, dict) else None
                yield (name if option == "symbols" else f"{option}.{name}"), value


@dataclass(frozen=True, slots=True)
class Resources:
    """What one launch takes under one configuration; on a CPU its working set and threads, and zeros.

    Of a library's product nothing is known: all are 0.
    """

    kernel: str  # its name
    shared: int  # shared memory, bytes per block; on a CPU the bytes of a program's tiles that are live together
    registers: int  # registers per thread; 0 when not known
    spills: int  # bytes of register spills per thread (stores plus loads)
    warps: int  # warps per block; on a CPU threads
