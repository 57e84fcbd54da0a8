"""What the numeric gate runs: which draws at which shapes under which configuration, and how much of each.

Triton's interpreter takes about 5 ms for one loop iteration of one program. So of the launches that nothing reads from
only a sample of programs runs (corners and a few between), and what those wrote is compared; the others get larger
tiles where they would take too long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import sympy

from prism.backends.protocol import Config
from prism.instantiate.draws import DRAWS
from prism.program.extents import Extent, evaluate
from prism.program.nodes import Program
from prism.sgraph.nodes import Grid, Kernel, LoopRole, SGraph, Split

Sample: TypeAlias = tuple[tuple[tuple[int, ...], int], ...] | None
"""For each kernel of a launch, tiles along each axis of its grid, and how many programs to run; None: all of them."""

ITERATION_S = 0.005
"""What the interpreter takes for one loop iteration of one program, seconds."""
CASE_TARGET_S = 1.0
"""What a case may cost in the interpreter before its programs are sampled, seconds."""
LEAST_SAMPLE = 5
LARGEST_TILE = 1 << 20
"""Elements of the box of a kernel's tiles up to which tiles are enlarged for the interpreter."""
LARGEST_EXTENT = 200
"""Symbolic extents are checked up to here, tile sizes beyond it at their range's low end."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run: a kind of draw at one binding of the symbols, under one configuration."""

    draw: str
    binding: Mapping[str, int]
    config: Config
    seed: int

    def __str__(self) -> str:
        at = ", ".join(f"{k}={v}" for k, v in sorted(self.binding.items()))
        return f"{self.draw} inputs" + (f" at {at}" if at else "") + f" with {self.config.key()}"


def plan_cases(
    program: Program, sgraph: SGraph, config: Config, alternatives: Sequence[Config] = (), seed: int = 0
) -> list[Case]:
    """The cases, in order: ordinary inputs at every kind of shape, then each adversarial draw at one of them."""
    bindings = plan_bindings(program, sgraph, config)
    cases = [Case("normal", b, config, seed * 1000 + n) for n, b in enumerate(bindings)]
    cheap = min([config, *alternatives], key=lambda c: cost_s(sgraph, c, plan_bindings(program, sgraph, c)[0]))
    shapes = plan_bindings(program, sgraph, cheap)
    if cheap != config:
        cases += [Case("normal", b, cheap, seed * 1000 + 50 + n) for n, b in enumerate(shapes)]
    # Ragged shapes first: a wrong mask shows there.
    order = shapes[2:] + shapes[:2]
    adversarial = [d for d in DRAWS if d != "normal"]
    return cases + [Case(d, order[n % len(order)], cheap, seed * 1000 + 100 + n) for n, d in enumerate(adversarial)]


def interpretable(sgraph: SGraph, config: Config, binding: Mapping[str, int]) -> Config:
    """The configuration, or where the interpreter would take too long for it, one with larger tiles.

    A launch that a later one reads from cannot be sampled. The emitted module takes any tile sizes, and the
    interpreter has neither shared memory nor registers to run out of.
    """
    symbols = dict(config.symbols)
    while True:
        held = Config(symbols, config.warps, config.stages)
        # A sampled launch takes the target by itself; as much again is left for the others.
        if cost_s(sgraph, held, binding, sampled=True) <= 2 * CASE_TARGET_S:
            return held
        better: list[tuple[float, str]] = []
        for name in _enlargeable(sgraph, held, binding):
            larger = Config({**symbols, name: 2 * symbols[name]}, config.warps, config.stages)
            better.append((cost_s(sgraph, larger, binding, sampled=True), name))
        if not better:
            return held
        symbols[min(better)[1]] *= 2


def _enlargeable(sgraph: SGraph, config: Config, binding: Mapping[str, int]) -> list[str]:
    """The tile symbols that are shorter than their axes and whose doubling leaves every kernel's box small enough."""
    found: dict[str, bool] = {}
    for kernel in sgraph.kernels:
        box = 1
        tiles: list[tuple[str, bool]] = []
        for axis, role in kernel.roles:
            extent = _extent(axis.extent, config, binding)
            match role:
                case Grid(tile) | LoopRole(tile) | Split(_, tile):
                    size = _value(tile, config)
                    box *= size
                    if isinstance(tile, sympy.Symbol):
                        tiles.append((tile.name, size < extent))
                case _:
                    box *= extent
        for name, shorter in tiles:
            found[name] = found.get(name, True) and shorter and 2 * box <= LARGEST_TILE
    return sorted(name for name, fits in found.items() if fits)


def plan_bindings(program: Program, sgraph: SGraph, config: Config) -> list[dict[str, int]]:
    """Values of the symbolic extents: tile multiples, 1, one more and one less than a tile, and a mixture of those."""
    names = sorted(program.ranges)
    if not names:
        return [{}]
    tiles = {name: _tile(sgraph, name, config) for name in names}
    patterns = [
        [lambda t: t] * len(names),
        [lambda t: 1] * len(names),
        [lambda t: t + 1] * len(names),
        [lambda t: t - 1] * len(names),
        [(lambda t: t + 3, lambda t: 2, lambda t: 2 * t - 1)[n % 3] for n in range(len(names))],
    ]
    found: dict[tuple[int, ...], dict[str, int]] = {}
    for pattern in patterns:
        values = {}
        for name, change in zip(names, pattern, strict=True):
            held = program.ranges[name]
            values[name] = min(max(change(tiles[name]), held.low, 1), held.high, max(held.low, LARGEST_EXTENT))
        found.setdefault(tuple(values.values()), values)
    return list(found.values())


def _tile(sgraph: SGraph, name: str, config: Config) -> int:
    """The largest tile of an axis whose extent is that symbol; 2 when there is none of more than 2 elements."""
    sizes = [2]
    for kernel in sgraph.kernels:
        for axis, role in kernel.roles:
            if isinstance(axis.extent, sympy.Symbol) and axis.extent.name == name:
                match role:
                    case Grid(tile) | LoopRole(tile) | Split(_, tile):
                        sizes.append(_value(tile, config))
                    case _:
                        pass
    return max(sizes)


def _value(symbol: object, config: Config) -> int:
    return int(config.symbols[symbol.name]) if isinstance(symbol, sympy.Symbol) else int(str(symbol))


def _extent(extent: Extent, config: Config, binding: Mapping[str, int]) -> int:
    return evaluate(extent, {**config.symbols, **binding})


def _grid_and_steps(kernel: Kernel, config: Config, binding: Mapping[str, int]) -> tuple[tuple[int, ...], int]:
    """Tiles along each grid axis, the slowest first, and how many loop iterations a program makes at most."""
    grid: list[int] = []
    shares: list[int] = []
    steps = 1
    for axis, role in kernel.roles:
        extent = _extent(axis.extent, config, binding)
        match role:
            case Grid(tile):
                grid.append(math.ceil(extent / _value(tile, config)))
            case LoopRole(tile):
                steps *= math.ceil(extent / _value(tile, config))
            case Split(parts, tile):
                shares.append(_value(parts, config))
                steps *= math.ceil(extent / (shares[-1] * _value(tile, config)))
            case _:
                pass
    return (*grid, *shares), steps


def cost_s(sgraph: SGraph, config: Config, binding: Mapping[str, int], *, sampled: bool = False) -> float:
    """What the interpreter takes for all launches, seconds, roughly.

    Args:
        sgraph: the sGraph.
        config: the configuration.
        binding: the value of every symbol of the extents.
        sampled: whether launches that can be sampled are, or all programs run.
    """
    launches = sgraph.launches
    samples = plan_samples(sgraph, config, binding) if sampled else [None] * len(launches)
    total = 0.0
    for launch, sample in zip(launches, samples, strict=True):
        for n, kernel in enumerate(launch.kernels):
            grid, steps = _grid_and_steps(kernel, config, binding)
            total += (sample[n][1] if sample else math.prod(grid)) * steps * ITERATION_S
    return total


def plan_samples(sgraph: SGraph, config: Config, binding: Mapping[str, int]) -> list[Sample]:
    """For each launch, which programs to interpret: all, unless it is long and nothing reads what it writes."""
    found: list[Sample] = []
    read = {t for k in sgraph.kernels for t in k.reads}
    for launch in sgraph.launches:
        target = CASE_TARGET_S / len(launch.kernels)
        sample: list[tuple[tuple[int, ...], int]] = []
        for kernel in launch.kernels:
            grid, steps = _grid_and_steps(kernel, config, binding)
            affordable = max(LEAST_SAMPLE, int(target / (steps * ITERATION_S)))
            whole = not read.isdisjoint(kernel.writes)
            sample.append((grid, math.prod(grid) if whole else min(affordable, math.prod(grid))))
        found.append(tuple(sample) if any(limit < math.prod(grid) for grid, limit in sample) else None)
    return found
