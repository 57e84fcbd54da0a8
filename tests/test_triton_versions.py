"""What is emitted compiles by the installed Triton and by the oldest that is supported, which a GPU's machine may have.

The oldest lies in a folder beside the virtual environment's own packages: `make test` installs it there and says where.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sgraph_samples as samples
import test_stages as stages
from compiled_code import VERSIONS, CodeOf, environment_of, stated
from sgraph_samples import BF16, Sample, sym
from test_horizontal import qkv, tiles
from test_ranges import narrowed
from test_resident import recurrence
from test_streams import branches, two_splits

from prism.backends.passes import tile_module
from prism.backends.protocol import arguments
from prism.backends.triton.crosscompile import WORKER, CompileJob, compiled, request
from prism.backends.triton.emit import emit_module
from prism.backends.triton.options import PRINTED
from prism.process.child import module_command
from prism.process.worker import Ending, Pool
from prism.sgraph.config import Config
from prism.sgraph.nodes import SGraph

NUMBERED = ("persistent", "streams")
VERSION = """
import triton


def launches(*tensors, config):
    raise RuntimeError(f"triton {triton.__version__}")
"""


@pytest.fixture(scope="module")
def pools(compilers: Pool) -> Iterator[Mapping[str, Pool]]:
    """What compiles, by name."""
    with Pool(module_command(WORKER), environment_of("oldest"), size=1) as oldest:
        yield {"oldest": oldest, "installed": compilers}


EACH_VERSION = pytest.mark.parametrize("version", VERSIONS)


@EACH_VERSION
def test_a_score_takes_one_multiply_add_and_one_exponential(code_of: CodeOf, version: str) -> None:
    g = samples.attention(BF16, heads=2, seq=1024, d=64).sgraph
    (name,) = (x.name for x in g.launches)
    (code,) = code_of(g, Config({"T_i": 64, "T_j": 64}, {name: 4}, {name: 2}), version=version)
    text = code.ptx
    # A thread has 32 scores and 32 values of the result, of 2 rows, whose factor is one more exponential each.
    scores, rows = 64 * 64 // 128, 2
    assert text.count("ex2.approx") == text.count("fma.rn.f32") == scores + rows
    # Results are rescaled and divided, rows have the maximum's product and its change's.
    assert text.count("mul.f32") == 2 * 32 + 2 * rows


@EACH_VERSION
@pytest.mark.parametrize("flattened", [False, True])
def test_a_flattened_launch_has_one_loop_with_all_its_stages(code_of: CodeOf, version: str, flattened: bool) -> None:
    g = samples.matmul(BF16, m=1024, k=512, n=1024).sgraph
    (name,) = (x.name for x in g.launches)
    config = Config({"T_m": 128, "T_n": 128, "T_k": 64}, {name: 8}, {name: 3})
    config = config.having(persistent={name: 1}, descriptors=[name], flattened=[name] * flattened)
    (code,) = code_of(g, config, version=version)
    text = code.ttgir
    assert text.count("scf.for") == (1 if flattened else 2)
    buffers = re.findall(
        r"local_alloc : \(\) -> !ttg\.memdesc<(\d)x128x64xbf16|local_alloc : .*<(\d)x64x128xbf16", text
    )
    assert [int(a or b) for a, b in buffers] == [3, 3]


@EACH_VERSION
@pytest.mark.parametrize("by_descriptors", [False, True])
def test_a_tile_in_two_layouts_is_permuted_by_descriptors_alone(
    code_of: CodeOf, version: str, by_descriptors: bool
) -> None:
    g = samples.rmsnorm_linear(BF16, m=64, d=512, n=128).sgraph
    (name,) = (x.name for x in g.launches)
    config = Config({"T_m": 64, "T_n": 64, "T_d": 128}, {name: 4}, {name: 3})
    (code,) = code_of(g, config.having(descriptors=[name] * by_descriptors), version=version)
    text = code.ttgir
    layouts = dict(re.findall(r"^(#shared\d*) = #ttg\.(.*)$", text, re.MULTILINE))
    (tile,) = (layouts[x] for x in re.findall(r"local_alloc : \(\) -> !ttg\.memdesc<\dx64x128xbf16, (#\w+)", text))
    (weight,) = (layouts[x] for x in re.findall(r"local_alloc : \(\) -> !ttg\.memdesc<\dx128x64xbf16, (#\w+)", text))
    permuted = "nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 16}>"
    assert weight == permuted
    assert tile == (
        permuted if by_descriptors else "swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>"
    )


def answered(pool: Pool, job: CompileJob) -> str:
    """What is wrong, nothing if it compiled."""
    reply = pool.submit(request(job), 120).result()
    return compiled(reply.answer).error if reply.ending is Ending.ANSWERED else f"{reply.ending}: {reply.detail}"


@dataclass(frozen=True)
class Emitted:
    """An sGraph, the tiles and lengths that it is compiled for, and whether its launches have their options."""

    sgraph: SGraph
    symbols: Mapping[str, int]
    lengths: Mapping[str, int]

    def options(self) -> dict[str, list[str]]:
        """For each option the launches that may have it."""
        module = tile_module(self.sgraph)
        found = {o.option: list(o(module, self.sgraph, []).launches) for o in PRINTED}
        return {name: launches for name, launches in found.items() if launches}

    def config(self, *options: str) -> Config:
        """The configuration, with these options wherever they are possible."""
        names = [x.name for x in self.sgraph.launches]
        chosen = {n: dict.fromkeys(x, 1) if n in NUMBERED else x for n, x in self.options().items() if n in options}
        return Config(dict(self.symbols), dict.fromkeys(names, 4), dict.fromkeys(names, 2)).having(**chosen)


def of(sample: Sample, sgraph: SGraph | None = None) -> Emitted:
    return Emitted(sgraph or sample.sgraph, sample.symbols[-1], sample.bindings[-1])


def loaded_in_pairs() -> Emitted:
    return Emitted(replace(stages.even_and_odd(), name="pairs"), {"T_n": 16, "T_k": 256}, {})


def three_in_one() -> Emitted:
    g = qkv(dtype=BF16)
    return Emitted(g, tiles(g), {"M": 37})


def beside_each_other() -> Emitted:
    g = branches()
    return Emitted(g, {s.name: 16 for s in g.symbols}, {})


def one_after_another() -> Emitted:
    g = two_splits()
    return Emitted(g, {s.name: 16 for s in g.symbols}, {})


def causal() -> Emitted:
    sample = samples.attention(BF16, seq=sym("seq"), d=32)
    return Emitted(narrowed(sample.sgraph), {"T_i": 16, "T_j": 16}, {"seq": 1000})


# Lengths that are known and lengths that are not, one of each kind of kernel; each option with several of them.
SPREAD: Mapping[str, tuple[Callable[[], Emitted], tuple[str, ...]]] = {
    "product": (lambda: of(samples.matmul(BF16, m=1000, k=1024, n=1024)), ("persistent", "flattened", "descriptors")),
    "product of any rows": (lambda: of(samples.symbolic_matmul(BF16)), ("persistent",)),
    "product by the library": (lambda: of(samples.matmul(BF16)), ("library",)),
    "split product": (lambda: of(samples.split_k_matmul(BF16)), ("descriptors",)),
    "norm and product": (lambda: of(samples.rmsnorm_linear(BF16)), ()),
    "norm in two passes": (lambda: of(samples.layernorm(BF16)), ()),
    "causal attention of any length": (causal, ("persistent", "descriptors")),
    "split attention": (lambda: of(samples.split_attention(BF16)), ("folded",)),
    "pointwise of any rows": (lambda: of(samples.symbolic_pointwise(BF16)), ()),
    "every function": (lambda: of(samples.functions(BF16)), ()),
    "running state": (lambda: of(samples.running_state(BF16)), ()),
    "lookups": (lambda: of(samples.lookups_in_any_table(BF16)), ()),
    "steps in one launch": (lambda: Emitted(recurrence(), {"T_n": 16}, {"t": 5, "n": 37}), ()),
    "scan": (lambda: of(samples.prefix_sums(BF16)), ()),
    "stages of plain loops": (loaded_in_pairs, ()),
    "three kernels in one launch": (three_in_one, ("descriptors",)),
    "launches beside each other": (beside_each_other, ("streams", "library")),
    "launches that start early": (one_after_another, ("dependent", "folded", "descriptors")),
    "early and persistent": (beside_each_other, ("dependent", "persistent", "descriptors")),
}


def test_both_versions_are_what_they_should_be(pools: Mapping[str, Pool], tmp_path: Path) -> None:
    path = tmp_path / "version.py"
    path.write_text(VERSION)
    said = answered(pools["oldest"], CompileJob(path, "sm_90", Config({}, {}, {}), ()))
    assert said.endswith(f"triton {stated()}")


def test_the_spread_has_every_option() -> None:
    used = {o for make, options in SPREAD.values() for o in options if o in make().options()}
    assert used == {o.option for o in PRINTED}
    static = [not make().lengths for make, _ in SPREAD.values()]
    assert 3 <= sum(static) <= len(static) - 3


@pytest.mark.parametrize("name", SPREAD)
def test_it_compiles_by_the_oldest_and_by_the_installed(pools: Mapping[str, Pool], name: str, tmp_path: Path) -> None:
    make, options = SPREAD[name]
    made = make()
    path = tmp_path / "emitted.py"
    path.write_text(emit_module(made.sgraph, formula="f", configs={}).text)
    assert set(options) <= made.options().keys()
    job = CompileJob(path, "sm_90", made.config(*options), arguments(made.sgraph, made.lengths))
    assert {version: answered(pool, job) for version, pool in pools.items()} == dict.fromkeys(pools, "")
