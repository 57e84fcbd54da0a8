"""One launch option more, through the doors that the others came in by: what it takes is what is written here."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest
import sgraph_samples as samples
import torch
from finalist import finalist, open_to
from sgraph_samples import BF16
from short_calls import config_of

import prism
from prism.backends.loading import load_module
from prism.backends.source import Writer
from prism.backends.triton.emit import emit_module
from prism.backends.triton.options import PRINTED
from prism.backends.triton.options.printed import Call, Printed
from prism.bench.prepare import entry, module_facts
from prism.cost.device import device
from prism.cost.model import CostModel, Model
from prism.errors import BackendError
from prism.instantiate.options import OPTIONS, Family, Offered, Option, variants
from prism.instantiate.proposals import Point, Proposer
from prism.instantiate.space import Space
from prism.instantiate.study import Best, Outcome
from prism.sgraph.config import Config, Resources

H200 = device("sm_90")


class Registers(Option):
    """A kernel's most registers a thread, so that more programs fit on a multiprocessor."""

    name = "registers"
    numbered = True
    offered = Offered.STUDY

    def __init__(self, family: Family) -> None:
        super().__init__(family)
        self.launches = [x.name for x in family.sgraph.launches] if family.device.is_gpu else []

    def feasible(self, config: Config) -> bool:
        return super().feasible(config) and config.launches(self.name) <= config.warps.keys()

    def variant(self, config: Config, model: CostModel, resources: Sequence[Resources] = ()) -> Config | None:
        large = {n: 128 for n in self.launches if config.warps.get(n, 0) >= 8}
        return config.having(registers=large) if large else None


class PrintedRegisters(Printed):
    option = "registers"
    refusal = "the launch {} has no registers"
    default = "{}"

    def call(self, call: Call, writer: Writer) -> None:
        call.keywords.append(f'maxnreg=registers.get("{call.launch.name}")')


ALL: Sequence[type[Option]] = (*OPTIONS, Registers)
ALL_PRINTED: Sequence[type[Printed]] = (*PRINTED, PrintedRegisters)
MATMUL = samples.matmul(BF16, m=4096, k=4096, n=4096).sgraph
KERNEL = "matmul_kernel"
LARGE = Config({"T_m": 128, "T_n": 128, "T_k": 64}, {KERNEL: 8}, {KERNEL: 3})


def test_a_space_offers_what_an_option_says() -> None:
    space, model = Space(MATMUL, H200, {}, ALL), Model(MATMUL, H200, {})
    assert open_to(space, "registers") == (KERNEL,)
    made = variants(space.options, Offered.STUDY, LARGE, model)
    assert made == (LARGE.having(descriptors=[KERNEL]), LARGE.having(registers={KERNEL: 128}))
    assert all(space.feasible(c) for c in made)
    assert not space.feasible(LARGE.having(registers={"other": 128}))
    assert not space.feasible(Config({**LARGE.symbols}, {}, {}).having(library=[KERNEL], registers={KERNEL: 64}))
    # Who has not heard of it takes no such point, and all else is the same.
    plain = Space(MATMUL, H200, {})
    assert not plain.feasible(made[1])
    assert [c.key() for c in plain.best(model, 20)] == [c.key() for c in space.best(model, 20)]
    found = space.varied([LARGE, *space.best(model, 3)], model, 1)
    assert found[:3] == (LARGE, *made)
    assert len(found) == 6


def test_it_is_written_down_and_read_back_everywhere() -> None:
    config = LARGE.having(registers={KERNEL: 128}, library=["other"])
    assert config.key().endswith(f"library.other registers.{KERNEL}=128")
    assert Config.decode(config.encode()) == config
    assert config_of(config.flat(), ALL) == config
    # A study tells it from the same point without it.
    points = (LARGE, LARGE.having(registers={KERNEL: 128}), LARGE.having(registers={KERNEL: 64}))
    proposer = Proposer([points], [Point(0, p) for p in points], 0)
    assert [proposer.parameters(Point(0, p))[0][f"0.registers.{KERNEL}"] for p in points] == [0, 2, 1]


def test_benchmarks_try_it_beside_the_best() -> None:
    f = finalist(MATMUL, H200, ALL)
    made = f.variants(Offered.STUDY, Best(0, LARGE, 1e-6, ()))
    assert LARGE.having(registers={KERNEL: 128}) in made
    assert entry(f, made[-1], Outcome(1e-6))["config"]["registers"] == {KERNEL: 128}


@pytest.mark.parametrize("chosen", [(), (KERNEL,)])
def test_a_module_launches_with_it_and_without(chosen: Collection[str], tmp_path: Path) -> None:
    config = LARGE.having(registers=dict.fromkeys(chosen, 128))
    text = emit_module(MATMUL, formula="f", configs={"sm_90": [config]}, options=ALL_PRINTED).text
    assert module_facts(text)[0] == [config.encode()]
    path = tmp_path / "module.py"
    path.write_text(text)
    tensors = [torch.empty(t.shape, dtype=torch.bfloat16, device="meta") for t in (*MATMUL.inputs, *MATMUL.outputs)]
    ((_, _, _, meta),) = load_module(path, apart=True).launches(*tensors, config=config.encode())
    assert meta["maxnreg"] == (128 if chosen else None)
    wrong = config.having(registers={"other": 1})
    with pytest.raises(BackendError, match="the launch other has no registers"):
        emit_module(MATMUL, formula="f", configs={"sm_90": [wrong]}, options=ALL_PRINTED)
    # What no one asks for is not there.
    assert "maxnreg" not in emit_module(MATMUL, formula="f", configs={}).text


@pytest.mark.parametrize("name", [o.name for o in OPTIONS])
def test_few_modules_name_an_option(name: str) -> None:
    """Its two objects, where its name stands, the models, and the options that rule it out or come with it."""
    root = Path(prism.__file__).parent
    word = re.compile(rf"\b{name.upper()}\b")
    files = (p for p in sorted(root.rglob("*.py")) if p.name != "cxx.py")  # which lists what C++ calls its own
    found = [p.name for p in files if word.search(p.read_text())]
    assert 3 <= len(found) <= 6, found
