"""The search space: what is feasible, in which order, and that separable kernels are ranked as if they were not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import pytest
from sgraph_small import ALL, attention, layer_norm, matmul, split_k

from prism.cost.constraints import checks, footprint
from prism.cost.device import DEVICES, device
from prism.cost.model import Model
from prism.errors import UsageError
from prism.instantiate.space import Space
from prism.program.extents import symbol
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph

H200 = device("sm_90")


def test_devices_are_known_by_target() -> None:
    assert set(DEVICES) == {"sm_80", "sm_89", "sm_90", "sm_100"}
    assert device("sm_90").shared_limit_bytes == 232_448
    with pytest.raises(UsageError, match="sm_80, sm_89, sm_90, sm_100"):
        device("sm_42")


@pytest.mark.parametrize("make", ALL)
def test_every_point_satisfies_every_constraint(make: Callable[[], SGraph]) -> None:
    g = make()
    space = Space(g, H200, {})
    assert space.size > 0
    for config in islice(space.configs(), 0, 2000, 37):
        for k in g.kernels:
            name = k.name
            if name in config.launches("library"):
                continue
            for what, ok in checks(footprint(k, g), H200, config.symbols, config.stages[name], config.warps[name]):
                assert ok, (what, config.key())
        assert space.feasible(config)
        assert set(config.symbols) == {s.name for s in g.symbols}


def test_size_counts_what_is_enumerated_each_once() -> None:
    for g in (matmul(64, 64, 64), layer_norm(8, 256), split_k(16, 16, 64)):
        space = Space(g, H200, {})
        keys = [c.key() for c in space.configs(5000)]
        assert len(set(keys)) == len(keys) == min(5000, space.size)


def test_more_stages_need_more_shared_memory() -> None:
    space = Space(matmul(4096, 4096, 4096), H200, {})
    (kernel,) = space.kernels
    operands = (kernel.column("T_m") + kernel.column("T_n")) * kernel.column("T_k") * 2
    assert (operands * kernel.column("stages") <= 232_448).all()
    assert operands[kernel.column("stages") == 1].max() > 232_448 // 4


def test_the_parts_of_a_split_are_the_same_in_both_kernels() -> None:
    space = Space(split_k(16, 256, 4096), H200, {})
    assert space.shared == ("S_k", "folded.combine")
    assert set(space.domains["S_k"]) <= {2, 4, 8, 16, 32, 64, 128}
    for config in islice(space.configs(), 0, 4000, 101):
        assert config.symbols["S_k"] * config.symbols["T_k"] <= 4096


@pytest.mark.parametrize("g", [matmul(64, 64, 64), layer_norm(8, 256), split_k(16, 16, 32)])
def test_ranking_is_that_of_all_points(g: SGraph) -> None:
    space = Space(g, H200, {})
    model = Model(g, H200, {})
    everything = sorted(model.seconds(c) for c in space.configs(20_000))
    assert space.size <= 20_000
    ranked = space.points_ranked(model, 10)
    assert [e.seconds for _, e in ranked] == pytest.approx(everything[:10], rel=1e-9)
    assert len({c.key() for c, _ in ranked}) == 10


def test_ranking_is_deterministic_and_its_head_does_not_depend_on_the_limit() -> None:
    g = attention(8, 1024, 64)
    model = Model(g, H200, {})
    first = [c.key() for c in Space(g, H200, {}).best(model, 20)]
    again = [c.key() for c in Space(g, H200, {}).best(model, 40)]
    assert again[:20] == first
    assert Space(g, H200, {}).points_ranked(model, 0) == []


def test_launches_that_hardly_count_are_at_their_best() -> None:
    g = split_k(16, 4096, 65536)
    main_kernel, second = g.kernels
    # With its grid the other way round the second stage stays a launch of its own.
    m, n, part = second.roles
    g = replace(g, kernels=(main_kernel, replace(second, roles=(n, m, part))))
    space, model = Space(g, H200, {}), Model(g, H200, {})
    (best, estimate), *rest = space.points_ranked(model, 40, minor=0.25)
    assert (best, estimate) == space.points_ranked(model, 1)[0]
    main, combine = estimate.per_kernel
    assert combine.seconds < 0.25 * estimate.seconds < main.seconds
    first, last = (k.name for k in g.kernels)

    def of(config: Config, kernel: str) -> list[int]:
        own = space.kernels[[k.name for k in g.kernels].index(kernel)]
        return [config.symbols[n] for n in own.names[:-2]] + [config.warps[kernel], config.stages[kernel]]

    configs = [c for c, _ in rest]
    assert all(of(c, first) != of(best, first) for c in configs)
    alike = [c for c in configs if c.symbols["S_k"] == best.symbols["S_k"]]
    assert alike
    assert all(of(c, last) == of(best, last) for c in alike)


def test_symbolic_extents_take_their_hints() -> None:
    g = attention(8, symbol("seq"), 64)
    space = Space(g, H200, {"seq": 300})
    assert max(space.domains["T_i"]) == 512
    assert space.best(Model(g, H200, {"seq": 300}), 1)


def test_an_infeasible_point_is_not_in_the_space() -> None:
    space = Space(matmul(), H200, {})
    config = next(space.configs())
    bad = type(config)({**config.symbols, "T_m": 3}, config.warps, config.stages)
    assert not space.feasible(bad)
