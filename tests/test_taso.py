"""TASO's substitutions are proved, each form of them (taso_forms.py)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from taso_forms import FORMS, Form

from prism.api.loading import trace
from prism.api.proving import verdict_on
from prism.egraph.worker import Worker


def unproved(forms: Sequence[Form], worker: Worker) -> list[str]:
    found = []
    for form in forms:
        left, right = form.functions()
        examples = form.examples()
        torch.testing.assert_close(left(*examples), right(*examples), atol=1e-2, rtol=1e-3)
        one, other = (trace(f, examples, name=n, check=False) for f, n in ((left, "left"), (right, "right")))
        verdict = verdict_on(one, other, worker)
        if not verdict:
            found.append(f"{form}: {verdict.reason}")
    return found


def test_a_spread_of_them_is_proved(worker: Worker) -> None:
    assert not unproved(FORMS[::18], worker)


@pytest.mark.slow
def test_every_one_is_proved(worker: Worker) -> None:
    assert len(set(map(str, FORMS))) == len(FORMS) >= 250
    assert not unproved(FORMS, worker)


@pytest.mark.parametrize(
    "text",
    [
        # Refuted as the other convolution is, by more products.
        pytest.param("s * conv(conv(X, K), L) == conv(conv(s * X, s * K), L)", marks=pytest.mark.slow),
        "pool(pool(X)) == conv(X, AVG)",
        "relu(conv(X, MID)) == X",
        "A @ B + C @ D == cat1(A, C) @ cat0(D, B)",
        "T(A @ B) == T(A) @ T(B)",
        "conv(X, E) == conv(X, big(E) + MID)",
        "cat0(conv(X, K), conv(Y, L)) == conv(cat0(X, Y), K)",
        "A @ (B + I) == A @ B",
        "largest(X + Y) == largest(X) + largest(Y)",
    ],
)
def test_what_is_like_them_and_wrong_is_refuted(text: str, worker: Worker) -> None:
    left, right = text.split(" == ")
    form = Form(left, right)
    one, other = (trace(f, form.examples(), name=n, check=False) for f, n in zip(form.functions(), "ab", strict=True))
    assert verdict_on(one, other, worker).status.value == "refuted"
