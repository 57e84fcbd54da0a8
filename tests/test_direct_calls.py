"""Calls of tensors like an earlier call's go past the interpreter, and are as those that do not."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import sgraph_samples as samples
import torch
from cpu_batch import load
from sgraph_samples import Sample
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from prism.backends.cpu.build import find_compiler
from prism.backends.cpu.emit import emit_module
from prism.backends.protocol import write_module
from prism.sgraph.config import Config

pytestmark = [
    pytest.mark.usefixtures("unoptimised"),
    pytest.mark.skipif(find_compiler() is None, reason="needs a C++ compiler: install g++ or clang++"),
]
SAMPLES = {
    "one result like an argument": samples.add_silu(),
    "results of other shapes": samples.moments(),
    "parts and a buffer": samples.split_k_matmul(),
    "any number of rows": samples.symbolic_matmul(),
}


def made(sample: Sample, folder: Path) -> tuple[ModuleType, Any]:
    configs = {"cpu": [Config(sample.symbols[0], {}, {})]}
    source = emit_module(sample.sgraph, configs=configs)
    module = load(write_module(source, folder / "m.py"), f"direct_{sample.name}_{folder.name}")
    return module, getattr(module, source.entry)


def drawn(sample: Sample, seed: int = 0) -> list[torch.Tensor]:
    return [torch.from_numpy(np.asarray(a)) for a in sample.inputs(sample.bindings[-1], seed)]


def direct(module: ModuleType, given: Sequence[Any]) -> Any:
    """What the call past the interpreter answers; None where it leaves it to the emitted function."""
    return vars(module._OWN)["direct", None](*given)


@pytest.fixture(scope="module")
def add_silu(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, Any]:
    module, entry = made(samples.add_silu(), tmp_path_factory.mktemp("add_silu"))
    entry(*drawn(samples.add_silu()))
    return module, entry


def compare(got: Any, wanted: Any) -> None:
    """Exactly equal, and of the same types."""
    assert type(got) is type(wanted)
    for a, b in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, wanted)), strict=True):
        assert type(a) is type(b)
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("numpy", [False, True], ids=["torch", "numpy"])
@pytest.mark.parametrize("what", SAMPLES)
def test_results_are_those_of_the_emitted_function(what: str, numpy: bool, tmp_path: Path) -> None:
    module, entry = made(SAMPLES[what], tmp_path)
    first, second = ([t.numpy() if numpy else t for t in drawn(SAMPLES[what], seed)] for seed in (0, 1))
    chosen = module.CONFIGS["cpu"][0]
    wanted = [entry(*given, config=chosen) for given in (first, second)]
    assert not hasattr(module._OWN, "learned")  # a configuration was asked for
    entry(*first)
    for given, result in zip((first, second, first), (*wanted, wanted[0]), strict=True):
        compare(direct(module, given), result)
        compare(entry(*given), result)
    one = entry(*first, threads=1)
    compare(vars(module._OWN)["direct", 1](*first), one)


def test_shapes_that_change_are_called_as_they_are(tmp_path: Path) -> None:
    sample = samples.symbolic_matmul()
    module, entry = made(sample, tmp_path)
    w = torch.randn(72, 24)
    for rows in (3, 5, 3, 40, 5, *range(6, 40), 3):
        x = torch.randn(rows, 72)
        torch.testing.assert_close(entry(x, w), x @ w, rtol=1e-4, atol=1e-4)
    assert module._OWN.learned > module._LEARNED
    assert direct(module, (torch.randn(3, 72), w)) is None  # the last one that was made is for other shapes


def test_what_is_not_like_it_is_left_to_the_emitted_function(add_silu: tuple[ModuleType, Any]) -> None:
    module, entry = add_silu
    x, y = drawn(samples.add_silu())
    wanted = entry(x, y, threads=1)
    assert direct(module, (x, y)) is not None
    for given in ((x,), (x, y, y), (x, None), (x, y.tolist()), (x.double(), y), (x[:3], y), (x.to("meta"), y)):
        assert direct(module, given) is None
    with pytest.raises(ValueError, match="x must be float32, not float64"):
        entry(x.double(), y)
    assert isinstance(entry(x.numpy(), y.numpy()), np.ndarray)
    stored = x.t().contiguous().t()
    assert direct(module, (stored, y)) is None
    torch.testing.assert_close(entry(stored, y), wanted)

    entry(x.numpy(), y.numpy())
    assert direct(module, (x.numpy(), y.numpy())) is not None
    for array in (stored.numpy(), x.numpy().astype(">f4"), x.numpy().view(np.recarray), x):
        assert direct(module, (array, y.numpy())) is None
    x.numpy().flags.writeable = False
    compare(direct(module, (x.numpy(), y.numpy())), wanted.numpy())
    entry(x, y)
    assert direct(module, (x, y)) is not None

    class Tagged(torch.Tensor):
        pass

    assert direct(module, (x.as_subclass(Tagged), y)) is None


def test_negative_views_are_read_as_what_they_are(tmp_path: Path) -> None:
    """Of one element they are contiguous: an imaginary part of a conjugate."""
    module, entry = made(samples.add_silu(m=1, n=1), tmp_path)
    x, y = torch.randn(2, 1, 1)
    wanted = entry(x, y)
    negative = torch.complex(x, -x).conj().imag
    assert negative.is_contiguous()
    assert negative.is_neg()
    assert direct(module, (x, y)) is not None
    assert direct(module, (negative, y)) is None
    torch.testing.assert_close(entry(negative, y), wanted)


def test_a_gradient_is_not_lost(add_silu: tuple[ModuleType, Any]) -> None:
    module, entry = add_silu
    x, y = drawn(samples.add_silu())
    weight = torch.nn.Parameter(x)
    assert direct(module, (weight, y)) is None
    with pytest.raises(ValueError, match="x requires a gradient"):
        entry(weight, y)
    with torch.no_grad():
        got = direct(module, (weight, y))
    torch.testing.assert_close(got, entry(x, y))
    assert type(got) is torch.Tensor
    assert not got.requires_grad


def test_tensors_without_memory_are_refused(add_silu: tuple[ModuleType, Any]) -> None:
    module, _entry = add_silu
    x, y = drawn(samples.add_silu())
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x), mode.from_tensor(y)
        assert direct(module, fake) is None
        assert direct(module, (x, y)) is None  # its result would be a fake one
    assert direct(module, (x, y)) is not None

    def mapped(row: torch.Tensor) -> torch.Tensor:
        assert direct(module, (row, y)) is None
        return row

    torch.vmap(mapped)(x[None].repeat(2, 1, 1))


def test_what_a_mode_of_torch_calls_meanwhile_changes_nothing(add_silu: tuple[ModuleType, Any]) -> None:
    """As one that logs: results are made of torch, so its handlers run."""
    _module, entry = add_silu
    x, y = drawn(samples.add_silu())
    other = drawn(samples.add_silu(), seed=1)
    wanted = entry(x, y)

    class Calling(TorchDispatchMode):  # type: ignore[no-untyped-call]
        busy = False

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not self.busy:
                self.busy = True
                entry(*other)
                self.busy = False
            return func(*args, **(kwargs or {}))

    with Calling():  # type: ignore[no-untyped-call]
        got = entry(x, y)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_each_thread_has_its_own(tmp_path: Path) -> None:
    sample = samples.split_k_matmul()  # parts are exchanged in memory that is the thread's
    _, entry = made(sample, tmp_path)
    failed: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            given = drawn(sample, seed)
            wanted = entry(*given, threads=1)
            for _ in range(200):
                torch.testing.assert_close(entry(*given), wanted, rtol=0, atol=0)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed


def test_two_threads_may_be_the_first_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, entry = made(samples.add_silu(), tmp_path)
    given = drawn(samples.add_silu())
    wanted = entry(*given, threads=1)
    found: list[torch.Tensor] = []
    compiling = module.compile_source
    other = threading.Thread(target=lambda: found.extend(entry(*given) for _ in range(4)))

    def interrupted(*args: Any, **named: Any) -> Any:
        done = compiling(*args, **named)
        if other.ident is None:
            other.start()
            other.join()
        return done

    # What both need is compiled by the one when the other has come through.
    monkeypatch.setattr(module, "compile_source", interrupted)
    module._MAKERS.clear()
    found += [entry(*given) for _ in range(4)]
    assert other.ident is not None
    assert len(found) == 8
    assert all(torch.equal(y, wanted) for y in found)
    assert direct(module, given) is not None


def test_nothing_is_kept_of_arguments_and_results(add_silu: tuple[ModuleType, Any]) -> None:
    module, _ = add_silu
    x, y = drawn(samples.add_silu())
    shape, before = x.shape, (sys.getrefcount(x), sys.getrefcount(None), sys.getrefcount(torch.float32))
    for _ in range(100):
        assert sys.getrefcount(direct(module, (x, y))) <= 2
        assert direct(module, (x, None)) is None
        assert direct(module, (x[:2], y)) is None
    after = sys.getrefcount(x), sys.getrefcount(None), sys.getrefcount(torch.float32)
    assert all(abs(a - b) < 50 for a, b in zip(after, before, strict=True))
    assert shape == x.shape


def test_a_direct_call_that_is_replaced_is_let_go(tmp_path: Path) -> None:
    module, entry = made(samples.symbolic_matmul(), tmp_path)
    w = torch.randn(72, 24)
    entry(torch.randn(3, 72), w)
    old = vars(module._OWN)["direct", None]
    held = old.__self__
    assert sys.getrefcount(old) <= 3
    entry(torch.randn(4, 72), w)
    assert vars(module._OWN)["direct", None] is not old
    assert old(torch.randn(3, 72), w).shape == (3, 24)  # its own is alive while it is
    del old, held
    assert entry(torch.randn(3, 72), w).shape == (3, 24)


def test_it_outlives_other_modules(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    sample = samples.add_silu()
    one, entry = made(sample, tmp_path / "one")
    wanted = entry(*drawn(sample))
    other, entry_of_other = made(sample, tmp_path / "other")
    entry_of_other(*drawn(sample))
    del other, entry_of_other
    gc.collect()
    compare(direct(one, drawn(sample)), wanted)
