"""Time from counts, where a device's rates meet what kernels move and compute; details rise from top to bottom.

    full        bytes and work of a device that is busy: how plans are ordered, and what is worth storing
    seconds     the same of one launch of so many programs: how families are pruned, and sGraphs at many shapes ranked
    traffic     bytes that come again come from the cache: what regions are cut by
    arithmetic  operations on matrix units and on vector units: the same
    memory      what kernels reach of both bandwidths: how configurations, a library's calls and the operators of the
                baseline are ranked, by the models of their devices (`gpu.py`, `cpu.py`, `library.py`, `model.py`)

Nothing outside this package knows a rate of a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from prism.cost.device import Device
from prism.program.nodes import DType

TILE = 128
"""A tile's length along an axis where tiles are not known yet, elements (guess)."""
CUT_TILE = 64
"""The same where cuts are put in order, elements (guess): shorter tiles count more of what is computed again, so more
is stored. With `TILE`, of all programs of `benchmarks/snapshot.py` the best estimates of two are worse and of none are
better: QK-norm attention 527 -> 876 us, chunked linear attention 177 -> 181 us."""


CALLS = 1e6
"""Calls that what is computed from a model's weights, once, serves (guess): enough that it is next to nothing."""


def a_call(once: Any) -> Any:
    """What a call has of what runs once for many: of seconds, bytes or operations, or of arrays of these."""
    return once / CALLS


def full(device: Device, moved: Any, work: Any, most: Callable[..., Any] = max) -> Any:
    """The time that a device takes whose processors are all busy: the larger of traffic and work, no launch counted.

    `work` are vector multiply-adds, those of matrix units weighed by `Device.matrix_operation`; `most` is `max`, or
    `np.maximum` for arrays.
    """
    return most(moved / device.bandwidth_bytes_s, work / device.multiply_adds_s)


def seconds(device: Device, moved: Any, work: Any, programs: Any) -> Any:
    """The time of one launch: that of a full device, at the share of it that the programs fill.

    `moved` are bytes, a number or an array; `work` is as for `full`.
    """
    filled = np.minimum(np.asarray(programs, dtype=np.float64), device.processors)
    least = full(device, np.asarray(moved), np.asarray(work), np.maximum)
    return least * (device.processors / filled) + device.launch_overhead_s


def traffic(device: Device, size: float, spread: float = 1.0) -> float:
    """The time to move a tensor of so many bytes `spread` times: once from memory, again from the cache."""
    return size * (1.0 / device.bandwidth_bytes_s + max(0.0, spread - 1.0) / device.cache_bandwidth_bytes_s)


def passed(device: Device, size: float) -> float:
    """The least time in which one processor moves so many bytes, all of them in the cache."""
    return size * device.processors / device.cache_bandwidth_bytes_s


def arithmetic(device: Device, matrix: float, vector: float, dtype: DType, busy: float = 1.0) -> tuple[float, float]:
    """The times of matrix operations of that type, at the busy share of the matrix units, and of multiply-adds."""
    return matrix / (device.dot_flops(dtype) * busy), vector / device.multiply_adds_s


def memory(device: Device, missed: Any, moved: Any, reached: Any, most: Callable[..., Any] = max) -> Any:
    """The time of a launch's traffic: bytes from memory, or all bytes from the cache, whichever takes longer.

    `missed` bytes are not in the cache that all processors share; `reached` is the share of the bandwidths that the
    launch reaches. `most` is `max`, or `np.maximum` for arrays.
    """
    return most(missed / device.bandwidth_bytes_s, moved / device.cache_bandwidth_bytes_s) / reached


ALONE = 2.0 / 3.0
"""The part of what the longest program does beyond the shortest that is done alone at the end (guess)."""


def dealt(programs: Any, processors: Any, longest: Any, ordered: bool) -> Any:
    """The time until programs of unequal length are done, each processor taking the next when it is done.

    In lengths of an average program, which lie evenly between the shortest and the longest; numbers or arrays. Programs
    of one length come in whole rounds. With the longest first (`prism.sgraph.ranges.ordered`), what is left at the end
    is as short as they get; else a long one may begin last, when the others are on average in the middle of theirs, and
    two thirds of what it does beyond the shortest are done alone. tests/test_longest_first.py works schedules out.
    `longest` is the longest program's length, in lengths of an average one; `ordered` is whether the longest come
    first.
    """
    shortest = np.maximum(2.0 - longest, 0.0)
    rounds = programs / processors
    end = (np.ceil(rounds) - rounds) * shortest
    if not ordered:
        end = end + np.where(rounds > 1, (longest - shortest) * ALONE, 0.0)
    return np.maximum(rounds + end, longest)
