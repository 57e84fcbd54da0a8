"""benchmarks/discover.py: its counts are what an sGraph moves and computes, its table of functions is whole."""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks import discover
from benchmarks.collection import KNOWN, PARTIAL, Known, rms_norm
from benchmarks.discover import (
    Counts,
    Row,
    best_known,
    derived,
    entry,
    geometric_mean,
    idle,
    main,
    measure,
    report,
    what_was_left,
)
from benchmarks.gallery import SHOWN, page
from prism.cost.device import device
from prism.egraph.worker import Worker
from prism.events import Funnel

ROOT = Path(__file__).resolve().parent.parent
NORM = Known("small norm", rms_norm, "x:m,n g:n", "m=512 n=1024", "2*m*n", "8*P*n", 2, "here")


def counted(worker: Worker, name: str, sizes: str = "") -> tuple[Counts, Counts]:
    """What is known of a function of the collection, and what was found, at other sizes where they are given."""
    known = next(k for k in KNOWN if k.name == name)
    found, _ = measure(replace(known, sizes=sizes) if sizes else known, worker)
    assert found.found is not None
    return found.known, found.found


def row(ratio: float, reason: str = "") -> Row:
    counts = Counts(1e6, 2e9, 3e6, 1)
    found = None if math.isinf(ratio) else replace(counts, bytes=2e6)
    return Row(f"f{ratio}", counts, ("io", "0"), "here", found, ratio, 1, 0.5, reason, ratio)


def test_every_function_says_what_is_known_of_it() -> None:
    assert len(KNOWN) >= 60
    assert len({k.name for k in KNOWN}) == len(KNOWN)
    assert all(k.source and k.launches >= 1 and k.dimensions for k in KNOWN)
    for k in KNOWN:
        assert not k.assume or k.assume.split()[0] in inspect.signature(k.fn).parameters, k.name


def test_formulas_are_taken_at_the_sizes() -> None:
    goal = best_known(NORM, NORM.program())
    io = 2 * (2 * 512 * 1024 + 1024)
    assert (goal.bytes, goal.matrix, goal.launches) == (io + 8 * PARTIAL * 1024, 2 * 512 * 1024, 2)


def test_an_input_that_is_stored_again_counts_twice_and_one_that_is_read_twice_once() -> None:
    both = replace(NORM, fn=lambda x, g: (x * g, x + g), more="0")
    assert best_known(both, both.program()).bytes == 2 * (3 * 512 * 1024 + 1024)


def test_a_norm_is_found_and_counted(worker: Worker) -> None:
    found, made = measure(replace(NORM, matrix="0", more="0", launches=1), worker)
    assert found.found is not None
    assert found.found.bytes == found.known.bytes == 2 * (2 * 512 * 1024 + 1024)
    assert (found.found.matrix, found.found.launches, found.ratio) == (0, 1, 1.0)
    assert found.known.vector == found.found.vector > 512 * 1024
    assert not found.reason
    assert len(made) == 1


def test_where_nothing_can_run_nothing_was_found(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "ranked", lambda *_: [])
    found, made = measure(NORM, worker)
    assert (found.found, found.ratio, made) == (None, math.inf, ())


def test_more_elements_than_32_bits_count_are_read_once(worker: Worker) -> None:
    """2^31 of them."""
    known, found = counted(worker, "variance of long rows", "m=8192 n=262144")
    assert found.bytes == known.bytes


def test_projections_that_differ_in_width_share_a_launch_with_their_norm(worker: Worker) -> None:
    """As many columns as the norm has rows, and a launch that neither projection fills alone."""
    known, found = counted(worker, "RMSNorm+QKV", "m=16 k=2048 n=2048 e=512")
    assert found.launches == 1
    assert found.bytes <= 1.02 * known.bytes
    assert found.matrix == known.matrix


def test_what_lacks_an_axis_of_a_product_is_summed_in_its_kernel(worker: Worker) -> None:
    known, found = counted(worker, "state and sum of keys")
    assert found.launches == 1
    # Keys are read once; the depth may be in two parts, whose results are stored: by the model within 2 % of one.
    assert found.bytes <= 1.15 * known.bytes < known.bytes + 32 * 4096 * 128 * 2


def test_a_sum_is_called_as_what_it_is_found_beside(worker: Worker) -> None:
    """Heads and values of one length: keys are read once for the state and their sum."""
    known, found = counted(worker, "normalised linear attention")
    assert found.launches == 2
    assert found.bytes <= 1.1 * known.bytes


def test_sums_that_two_kernels_need_are_stored_by_the_one_that_finds_them(worker: Worker) -> None:
    known, found = counted(worker, "GroupNorm backward")
    assert found.launches == 2
    assert found.bytes <= 1.01 * known.bytes


def test_sums_that_only_their_product_is_needed_of_are_stored_as_that(worker: Worker) -> None:
    """A row's deviation and its sum of products: neither is of any use to the gain's gradient alone."""
    known, found = counted(worker, "InstanceNorm backward")
    assert found.launches == 2
    assert found.bytes <= 1.01 * known.bytes


def test_a_block_s_product_is_scaled_as_it_is_added(worker: Worker) -> None:
    """Scales that are products of inputs are not stored, however many ways there are to."""
    known, found = counted(worker, "linear, float8 scales of blocks")
    assert found.launches == 1
    assert found.matrix == known.matrix
    assert found.bytes < 2 * known.bytes  # less than what matrix units take meanwhile


def test_places_that_many_elements_are_looked_up_at_do_not_cut_a_region(worker: Worker) -> None:
    known, found = counted(worker, "bilinear upsampling", "n=2 c=8 h=64 w=64")
    assert found.launches == 1
    assert found.bytes == known.bytes


def test_a_product_of_which_many_elements_are_looked_up_is_one_of_matrices(worker: Worker) -> None:
    """Pairs of features at places of one list: element by element they are no product of matrices."""
    known, found = counted(worker, "DLRM interaction")
    assert found.matrix == known.matrix
    assert found.launches == 2


def test_gates_per_channel_go_by_chunks(worker: Worker) -> None:
    """Written as exponentials that grow, of the row and of the column: their sums are within chunks."""
    known, found = counted(worker, "linear attention, gates per channel")
    assert found.launches <= 3
    assert found.bytes <= 1.45 * known.bytes
    assert found.vector <= 1.5 * known.vector


def test_what_windows_see_through_windows_is_computed_once(worker: Worker) -> None:
    """An activation's gradient under taps, which the weights' gradient reads back at its places as well."""
    known, found = counted(worker, "causal convolution backward")
    assert found.vector <= 1.5 * known.vector
    # Places lack the axis of taps, and taps that of places: one kernel stores along these and sums for those.
    assert found.bytes <= 1.75 * known.bytes
    assert found.launches == 2


def test_what_a_ray_and_what_a_sample_gets_is_one_kernel(worker: Worker) -> None:
    """Each output has an axis that the other lacks: samples are summed, colours unknown to the weights."""
    known, found = counted(worker, "volume rendering", "m=4096 n=128")
    assert found.launches == 1
    assert found.bytes == known.bytes


def test_numbers_that_one_output_is_made_of_are_stored(worker: Worker) -> None:
    """The sums that weights' gradients are stacked from are found where rows are read for another output."""
    known, found = counted(worker, "PolyNorm backward", "m=512 n=1024")
    assert found.bytes <= 1.02 * known.bytes
    assert found.launches <= 3


def test_means_of_logarithms_are_one_pass(worker: Worker) -> None:
    """Their exponential is bounded by what is added up, term by term."""
    known, found = counted(worker, "odds ratio loss", "b=2 s=256 v=8192")
    assert found.bytes <= 1.1 * known.bytes
    assert found.launches <= 3


def test_what_a_mask_weighs_is_summed_beside_the_logarithm_that_is_taken_off_it(worker: Worker) -> None:
    known, found = counted(worker, "supervised contrastive loss", "n=1024 d=64")
    assert found.matrix == known.matrix
    assert found.launches <= known.launches


def test_a_guarded_logsumexp_bounds_what_it_is_of(worker: Worker) -> None:
    """Densities that are added up in another order than the model's, and their softmax, are one kernel."""
    _, found = counted(worker, "Gaussian mixture, E step", "n=4096 d=32 k=16")
    assert found.launches == 1


def test_what_lies_between_places_that_all_see_and_a_window_is_left_out(worker: Worker) -> None:
    known, found = counted(worker, "window and global tokens", "h=8 s=4096 d=64")
    assert found.matrix <= 1.25 * known.matrix


def test_results_of_convolutions_are_stored_as_the_model_has_them(worker: Worker) -> None:
    """A window reads an element many times, which makes what it computes no smaller than what it reads."""
    known = next(k for k in KNOWN if k.name == "convolution+GroupNorm")
    _, (made,) = measure(replace(known, sizes="n=2 c=64 e=16 s=32"), worker)
    whole = [t for t in made.proved.sgraph.buffers if math.prod(int(e) for e in t.shape) >= 2 * 16 * 32 * 32]
    assert whole
    assert all(t.dtype.bytes == 2 for t in whole)


def test_both_heads_are_rotated_in_one_launch_that_reads_each_once(worker: Worker) -> None:
    known, found = counted(worker, "RoPE", "b=2 h=4 s=256 d=64")
    assert found.launches == 1
    assert found.bytes == known.bytes


def _by_roll(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    half = q.shape[-1] // 2
    signed = torch.where(torch.arange(2 * half, device=q.device) < half, -1.0, 1.0).to(q.dtype) * sin
    return q * cos + q.roll(half, -1) * signed, k * cos + k.roll(half, -1) * signed


def _by_stack(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    def turned(x: Tensor) -> Tensor:
        low, high = x.view(*x.shape[:-1], 2, -1).unbind(-2)
        return torch.stack((-high, low), -2).flatten(-2)

    return q * cos + turned(q) * sin, k * cos + turned(k) * sin


def _neighbours_by_stack(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = torch.stack((-q[..., 1::2], q[..., ::2]), -1).flatten(-2)
    return q * cos.repeat_interleave(2, -1) + turned * sin.repeat_interleave(2, -1)


def _labels_of_two_numbers(x: Tensor, t: Tensor) -> Tensor:
    logs = x.float().log_softmax(-1)
    labels = torch.full_like(logs, 0.1 / x.shape[-1]).scatter(1, t[:, None], 0.9 + 0.1 / x.shape[-1])
    return (-labels * logs).sum(-1).mean()


def _masked_by_numbers(z: Tensor, t: Tensor) -> Tensor:
    z = torch.nn.functional.normalize(z, dim=1)
    same = torch.eq(t[:, None], t[None]).to(z.dtype)
    scores = z @ z.T / 0.1
    scores = scores - scores.amax(1, keepdim=True)
    others = 1 - torch.eye(z.shape[0], device=z.device, dtype=z.dtype)
    same = same * others
    logs = scores - (scores.exp() * others).sum(1, keepdim=True).log()
    return -((same * logs).sum(1) / same.sum(1).clamp(min=1)).mean()


def _less_logsumexp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return torch.exp(scores - scores.logsumexp(-1, keepdim=True)) @ v


def _keys_put_together(q: Tensor, p: Tensor, c: Tensor, k: Tensor) -> Tensor:
    return (torch.cat([q, p], -1) @ torch.cat([c, k], -1).mT * 0.07).softmax(-1) @ c


def _segments(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    n = a.shape[-1]
    seen = torch.ones(n, n, dtype=torch.bool, device=x.device)
    after = a.float()[..., None].expand(*a.shape, n).masked_fill(~seen.tril(-1), 0).cumsum(-2)
    decays = after.masked_fill(~seen.tril(), -math.inf).exp()
    return torch.einsum("ln,sn,hls,hsp->hlp", c, b, decays.to(x.dtype), x)


def _masked_again(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    shares = torch.exp(scores - scores.amax(-1, keepdim=True)) * seen
    return (shares @ v) / shares.sum(-1, keepdim=True)


def _masked_below_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    seen = torch.ones(q.shape[-2], q.shape[-2], device=q.device, dtype=q.dtype).tril()
    scores = q @ k.mT * q.shape[-1] ** -0.5
    shares = torch.exp(scores - scores.amax(-1, keepdim=True)) * seen
    return (shares @ v) / shares.sum(-1, keepdim=True)


def _softmax_masked_after(x: Tensor) -> Tensor:
    seen = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).tril()
    shares = (x * 0.125).softmax(-1) * seen
    return shares / shares.sum(-1, keepdim=True)


def _exponentials_of_a_triangle(x: Tensor) -> Tensor:
    shares = torch.exp(x * 0.125 - (x * 0.125).amax(-1, keepdim=True)).tril()
    return shares / shares.sum(-1, keepdim=True)


def _powers(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    decay = 1 - torch.exp2(-5.0 - torch.arange(q.shape[0], dtype=torch.float, device=q.device))
    places = torch.arange(q.shape[1], device=q.device)
    ahead = places[:, None] - places
    decays = torch.where(ahead >= 0, decay[:, None, None] ** ahead.clamp(min=0), 0.0)
    return ((q @ k.mT) * decays).to(q.dtype) @ v


def _powers_of_two(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    so_far = (a.float() * math.log2(math.e)).cumsum(-1)
    decays = torch.exp2(so_far[..., None] - so_far[:, None]).tril()
    return ((q @ k.mT) * decays).to(q.dtype) @ v


@pytest.mark.parametrize(
    ("name", "fn", "sizes"),
    [
        ("causal attention", _masked_again, "h=8 s=2048 d=64"),
        ("causal attention", _masked_below_all, "h=8 s=2048 d=64"),
        ("causal softmax", _softmax_masked_after, "b=8 s=1024"),
        ("causal softmax", _exponentials_of_a_triangle, "b=8 s=1024"),
        ("retention", _powers, "h=8 s=2048 d=64"),
        ("gated linear attention", _powers_of_two, "h=8 s=2048 d=64"),
        ("RoPE", _by_roll, "b=2 h=4 s=256 d=64"),
        ("RoPE", _by_stack, "b=2 h=4 s=256 d=64"),
        ("RoPE, interleaved", _neighbours_by_stack, "b=2 h=4 s=256 d=64 e=32"),
        ("smoothed cross-entropy", _labels_of_two_numbers, "m=256 v=8192"),
        pytest.param("supervised contrastive loss", _masked_by_numbers, "n=1024 d=64", marks=pytest.mark.slow),
        ("attention", _less_logsumexp, "h=8 s=2048 d=64"),
        ("MLA decode", _keys_put_together, "b=4 h=64 r=256 e=64 s=2048"),
        ("Mamba-2, quadratic form", _segments, "h=8 s=2048 d=64 n=64"),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_how_a_function_is_written_makes_no_difference(
    name: str, fn: Callable[..., object], sizes: str, worker: Worker
) -> None:
    known = replace(next(k for k in KNOWN if k.name == name), sizes=sizes)
    (own, _), (found, _) = measure(known, worker), measure(replace(known, fn=fn), worker)
    assert found.ratio <= 1.05 * own.ratio


def test_decoding_with_projections_is_one_region(worker: Worker) -> None:
    """Of four products: scores of two, absorbed on one side and projected on the other."""
    known = next(k for k in KNOWN if k.name == "MLA decode with projections")
    small = replace(known, sizes="b=2 h=16 r=512 e=64 f=128 s=4096")
    found, made = measure(small, worker)
    assert len(made) == 1
    assert found.ratio <= 1.2


def test_what_rows_are_stored_for_is_numbers_and_not_rows(worker: Worker) -> None:
    """In full precision a row of a norm's gradient takes as much memory as its inputs."""
    known, found = counted(worker, "RMSNorm backward, float32", "m=1024 n=1024")
    assert found.bytes <= 1.01 * known.bytes


def test_what_one_program_does_is_not_reached(worker: Worker) -> None:
    """Of all that is proved the one launch moves the least, by few programs: each reads all keys of its heads."""
    known = next(k for k in KNOWN if k.name == "MLA decode")
    row, (made,) = measure(known, worker)
    assert row.reached > 1.1
    assert 1 <= idle(made, device("sm_90")) < 2


def test_time_is_the_largest_part_and_the_launches() -> None:
    h200 = device("sm_90")
    launch = h200.launch_overhead_s
    assert Counts(h200.bandwidth_bytes_s, 0, 0, 2).seconds(h200) == pytest.approx(1 + 2 * launch)
    assert Counts(0, 3 * h200.half_dot_flops, h200.multiply_adds_s, 0).seconds(h200) == pytest.approx(3)


def test_the_mean_is_of_what_was_proved() -> None:
    assert geometric_mean([1.0, 4.0, math.inf]) == pytest.approx(2)
    assert math.isnan(geometric_mean([math.inf]))


def test_what_is_far_is_listed_with_its_reason() -> None:
    text = report([row(1.2), row(2.4, "because"), row(1.6), row(math.inf)])
    assert "geometric mean 1.664 of 3 functions" in text
    assert "over 1.5: f2.4 2.40: because" in text
    assert "over 1.5: f1.6 1.60: no reason is known" in text
    assert "nothing proved: finf" in text
    assert "1->2" in text


def test_json_holds_a_line_a_function(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(discover, "measure", lambda known, worker: (replace(row(1.5), name=known.name), ()))
    assert main(["--json", "--only", "add+RMSNorm back", "five"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in lines] == ["add+RMSNorm backward", "five times"]
    with pytest.raises(SystemExit):
        main(["--only", "nothing of that name"])


def test_the_gallery_shows_a_function_from_formula_to_kernel(worker: Worker) -> None:
    norm = replace(NORM, matrix="0", more="0", launches=1)
    found, made = measure(norm, worker)
    (listed,) = entry(norm, found, made)
    (shown,) = derived([(listed, made[0])])
    assert shown.gain > 1.0
    assert any("rearranged" in line or "(" in line for line in shown.proof[1:]), "the rules of the derivation"
    text = page([replace(shown, name="a lesser one", gain=1.0), shown])
    assert text.index("## small norm") < text.index("## a lesser one"), "the largest gain comes first"
    for part in ("def rms_norm(x", "proved: ", "@triton.jit", "tl.store", "[small norm](#small-norm)", "x:m,n g:n"):
        assert part in text
    assert "import" not in shown.kernels
    assert entry(norm, found, (*made, *made)) == [], "of several regions no sGraph is all"


def test_the_gallery_in_docs_is_of_functions_of_the_collection() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "docs" / "gallery.md").read_text(), re.MULTILINE)
    assert len(headings) == SHOWN
    assert set(headings) <= {k.name for k in KNOWN}


def test_a_search_in_which_nothing_was_proved_says_what_became_of_what_was_left() -> None:
    lost = Funnel(generated=90, pruned={"worse": 84, "numerics": 3, "illegal": 2}, unknown=1)
    assert what_was_left(lost) == "6 left, 0 proved, numerics: 3, illegal: 2, unknown: 1"
    assert "f1.0: a region of which nothing was proved: 6 left" in report(
        [replace(row(1.0), unproved=(what_was_left(lost),))]
    )
