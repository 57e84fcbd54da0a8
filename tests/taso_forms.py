"""What TASO's generated substitutions say, each form once (Jia et al., SOSP 2019; its 743 as tensat lists them).

Forms that differ in the names of their inputs only, in the size of a kernel, or in the sides' order are one. A form
that needs an identity matrix, a kernel that is one in the middle or a kernel that averages has it as a constant.

    A, B, C, D: matrices; s: a scalar; X, Y, Z: images; K, L, M: kernels of 3x3; E: one of 1x1
    T: transposed; cat0, cat1: one after the other along an axis; conv: convolution, as large as its input, stride 1
    pool, largest: pooling 3x3, as large as its input, zeros beyond the border counted in the average
    big: a kernel of 1x1 within zeros; I, ONE: matrices; MID, AVG: kernels that do nothing, or average
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

N = 16
CHANNELS = 4
SIDE = 8


def conv(x: Tensor, kernel: Tensor) -> Tensor:
    return F.conv2d(x, kernel, padding=kernel.shape[-1] // 2)


def pool(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 1, 1)


def largest(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, 1, 1)


def big(kernel: Tensor) -> Tensor:
    return F.pad(kernel, (1, 1, 1, 1))


def constants() -> dict[str, Tensor]:
    eye = torch.eye(CHANNELS)[:, :, None, None]
    return {
        "I": torch.eye(N),
        "ONE": torch.ones(N, N),
        "XONE": torch.ones(2, CHANNELS, SIDE, SIDE),
        "MID": F.pad(eye, (1, 1, 1, 1)),
        "AVG": (eye / 9).expand(CHANNELS, CHANNELS, 3, 3).contiguous(),
    }


CALLS: dict[str, Callable[..., Tensor]] = {
    "T": lambda a: a.mT,
    "relu": torch.relu,
    "cat0": lambda *a: torch.cat(a, 0),
    "cat1": lambda *a: torch.cat(a, 1),
    "conv": conv,
    "pool": pool,
    "largest": largest,
    "big": big,
}


def shape(name: str) -> tuple[int, ...]:
    if name in "ABCD":
        return (N, N)
    if name in "XYZ":
        return (2, CHANNELS, SIDE, SIDE)
    return () if name == "s" else (CHANNELS, CHANNELS, *((1, 1) if name in "EG" else (3, 3)))


INPUTS = "ABCDsXYZKLMEG"


@dataclass(frozen=True, slots=True)
class Form:
    """Two expressions that are equal, as Python text."""

    left: str
    right: str

    def __str__(self) -> str:
        return f"{self.left} == {self.right}"

    @property
    def inputs(self) -> tuple[str, ...]:
        import ast

        used = {n.id for side in (self.left, self.right) for n in ast.walk(ast.parse(side)) if isinstance(n, ast.Name)}
        return tuple(name for name in INPUTS if name in used)

    def functions(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        names = ", ".join(self.inputs)
        scope = {**CALLS, **constants()}
        return eval(f"lambda {names}: {self.left}", scope), eval(f"lambda {names}: {self.right}", scope)

    def examples(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(shape(name), generator=generator) for name in self.inputs]


def forms(text: str) -> tuple[Form, ...]:
    rows = [line for line in text.strip().splitlines() if line and not line.startswith("#")]
    return tuple(Form(*(side.strip() for side in row.split("=="))) for row in rows)


FORMS: Sequence[Form] = forms("""
# products of matrices
(A @ B) @ C == A @ (B @ C)
(A @ B) @ (C @ D) == (A @ (B @ C)) @ D
(A @ B) @ (C @ D) == A @ ((B @ C) @ D)
((A @ B) @ C) @ C == A @ ((B @ C) @ C)
(A @ (B @ C)) @ B == A @ (B @ (C @ B))
(A @ (B @ C)) @ B == (A @ B) @ (C @ B)
(A @ B) @ ((A @ B) @ A) == (A @ (B @ A)) @ (B @ A)
(A @ (A @ B)) @ C == A @ (A @ (B @ C))
(A @ (B @ A)) @ C == A @ (B @ (A @ C))
(A @ (B @ A)) @ C == (A @ B) @ (A @ C)
(A @ (B @ C)) @ A == A @ (B @ (C @ A))
(A @ (B @ C)) @ A == (A @ B) @ (C @ A)
A @ (B @ (B @ C)) == ((A @ B) @ B) @ C
(A @ B) @ (A @ C) == A @ ((B @ A) @ C)
(A @ B) @ (C @ A) == A @ ((B @ C) @ A)
A @ (B @ (C @ B)) == ((A @ B) @ C) @ B
(A @ B) @ A == A @ (B @ A)
A @ C + B @ C == (A + B) @ C
A @ B + A @ C == A @ (B + C)
A @ B + (A @ B) @ C == A @ (B + B @ C)
(A + A @ B) @ C == A @ (C + B @ C)
(A + B @ A) @ C == A @ C + B @ (A @ C)
A + A @ B == A @ (B + I)
A + B @ A == (B + I) @ A
A @ I == A
I @ T(A) == T(A)
# sums and products of elements
C + (C + (A + B)) == (A + C) + (B + C)
C + (A + B) == B + (A + C)
(A + B) + (B + C) == B + (B + (A + C))
C + (C + (A + B)) == B + (C + (A + C))
A * (B + C) == A * B + A * C
A * B + C * (A * B) == B * (A + A * C)
C * (B + A * B) == B * (C + A * C)
C * (B + A * B) == B * C + A * (B * C)
C * (C * (A * B)) == (A * C) * (B * C)
C * (A * B) == B * (A * C)
(A * B) * (B * C) == B * (B * (A * C))
C * (C * (A * B)) == B * (C * (A * C))
A + A * B == A * (B + ONE)
# scalars
s * ((A @ B) @ C) == (s * A) @ (B @ C)
s * ((A @ B) @ C) == A @ (s * (B @ C))
s * ((A @ B) @ C) == ((s * A) @ B) @ C
s * ((A @ B) @ C) == (A @ (s * B)) @ C
s * ((A @ B) @ C) == A @ ((s * B) @ C)
s * ((A @ B) @ C) == A @ (B @ (s * C))
s * (A @ (B @ C)) == (A @ B) @ (s * C)
s * (A @ (B @ C)) == (s * (A @ B)) @ C
s * (A @ B) == (s * A) @ B
s * (A @ B) == A @ (s * B)
s * (s * (A @ B)) == (s * A) @ (s * B)
s * (s * (A @ B)) == (s * (s * A)) @ B
s * (s * (A @ B)) == A @ (s * (s * B))
A @ (s * I) == s * A
s * (C * (A * B)) == (A * C) * (s * B)
s * (C * (A * B)) == B * (s * (A * C))
s * (C * (A * B)) == C * (B * (s * A))
s * (A * B) == B * (s * A)
s * (s * (A * B)) == (s * A) * (s * B)
s * (s * (A * B)) == B * (s * (s * A))
s * (A + B) == s * A + s * B
s * (A + A @ B) == s * A + (s * A) @ B
s * (A + B @ A) == s * A + B @ (s * A)
s * (C * (A @ B)) == C * ((s * A) @ B)
s * (C * (A @ B)) == C * (A @ (s * B))
s * cat1(A, A @ B) == cat1(s * A, (s * A) @ B)
s * cat0(A, A @ B) == cat0(s * A, (s * A) @ B)
s * cat0(A, B @ A) == cat0(s * A, B @ (s * A))
s * cat1(A, B @ A) == cat1(s * A, B @ (s * A))
A @ B + s * (A @ B) == (A + s * A) @ B
A @ B + s * (A @ B) == A @ (B + s * B)
A * B + s * (A * B) == B * (A + s * A)
s * ((A * B) @ C) == (B * (s * A)) @ C
s * (A @ (B * C)) == A @ (C * (s * B))
s * (A + A * B) == s * A + B * (s * A)
s * cat1(A, A * B) == cat1(s * A, B * (s * A))
s * cat0(A, A * B) == cat0(s * A, B * (s * A))
cat0(A @ B, s * (A @ B)) == cat0(A, s * A) @ B
cat1(A @ B, s * (A @ B)) == A @ cat1(B, s * B)
# transposition
B @ T(s * A) == (s * B) @ T(A)
B @ T(s * A) == s * (B @ T(A))
(s * A) @ T(B) == A @ T(s * B)
(s * A) @ T(B) == A @ (s * T(B))
T(s * A) @ B == T(A) @ (s * B)
T(s * A) @ B == s * (T(A) @ B)
T(B) @ (s * A) == T(s * B) @ A
T(B) @ (s * A) == (s * T(B)) @ A
B * T(s * A) == (s * B) * T(A)
B * T(s * A) == s * (B * T(A))
T(s * A) == s * T(A)
T(A + s * A) == T(A) + s * T(A)
T(A * (s * A)) == T(A) * (s * T(A))
T(s * (s * A)) == s * (s * T(A))
T(relu(s * A)) == relu(s * T(A))
T(cat0(A, s * A)) == cat1(T(A), s * T(A))
T(cat1(A, s * A)) == cat0(T(A), s * T(A))
A @ (s * I) == T(s * T(A))
T(relu(A)) == relu(T(A))
T(A + relu(A)) == T(A) + relu(T(A))
T(A * relu(A)) == T(A) * relu(T(A))
T(s * relu(A)) == s * relu(T(A))
T(relu(relu(A))) == relu(relu(T(A)))
T(cat0(A, relu(A))) == cat1(T(A), relu(T(A)))
T(cat1(A, relu(A))) == cat0(T(A), relu(T(A)))
relu(A) == T(relu(T(A)))
T(A + B) == T(A) + T(B)
T(A * B) == T(A) * T(B)
T(cat0(A, B)) == cat1(T(A), T(B))
T(cat1(A, B)) == cat0(T(A), T(B))
T(A @ B) == T(B) @ T(A)
T(B @ T(A)) == A @ T(B)
T(A @ (s * A)) == T(A) @ (s * T(A))
T(A @ (s * A)) == (s * T(A)) @ T(A)
T(relu(A) @ A) == T(A) @ relu(T(A))
T(A @ relu(A)) == relu(T(A)) @ T(A)
cat1(s * A, T(s * A)) == s * cat1(A, T(A))
cat1(relu(A), T(relu(A))) == relu(cat1(A, T(A)))
cat0(s * A, T(s * A)) == s * cat0(A, T(A))
cat0(relu(A), T(relu(A))) == relu(cat0(A, T(A)))
T(T(A) @ B) == T(B) @ A
(B @ C) @ T(A) == B @ (C @ T(A))
(A @ T(B)) @ C == A @ (T(B) @ C)
T(A) @ (B @ C) == (T(A) @ B) @ C
T(A) @ (B @ T(A)) == (T(A) @ B) @ T(A)
A @ T(A) == T(T(A)) @ T(A)
T(A) @ A == T(A) @ T(T(A))
T(T(s * A)) == s * T(T(A))
T(T(relu(A))) == relu(T(T(A)))
s * A + T(s * A) == s * (A + T(A))
T(cat0(A, T(A))) == cat1(T(A), T(T(A)))
T(cat1(A, T(A))) == cat0(T(A), T(T(A)))
T(B + T(A)) == A + T(B)
T(B * T(A)) == A * T(B)
B @ T(A) == T(A @ T(B))
T(A) @ B == T(T(B) @ A)
# concatenation
cat0(B, A @ B) @ C == cat0(B @ C, A @ (B @ C))
cat1(A @ B, (A @ B) @ C) == A @ cat1(B, B @ C)
cat1(s * A, s * B) == s * cat1(A, B)
cat0(s * A, s * B) == s * cat0(A, B)
cat1(relu(A), relu(B)) == relu(cat1(A, B))
cat0(relu(A), relu(B)) == relu(cat0(A, B))
cat1(A + B, B + C) == cat1(A, B) + cat1(B, C)
cat1(A * B, B * C) == cat1(A, B) * cat1(B, C)
cat0(A + B, C + D) == cat0(A, C) + cat0(B, D)
cat0(A * B, C * D) == cat0(A, C) * cat0(B, D)
cat0(A + B, C + D) == cat0(A, D) + cat0(B, C)
A @ C + B @ D == cat1(A, B) @ cat0(C, D)
cat1(A @ B, A @ C) == A @ cat1(B, C)
cat0(A @ C, B @ C) == cat0(A, B) @ C
cat0(cat1(A, B), cat1(C, D)) == cat1(cat0(A, C), cat0(B, D))
# several results of one: each is a part of the joined
relu(A) == relu(cat1(A, B))[:, :16]
relu(B) == relu(cat0(A, B))[16:]
A @ B == (A @ cat1(B, C))[:, :16]
A @ C == (A @ cat1(B, C))[:, 16:]
A @ C == (cat0(A, B) @ C)[:16]
B @ C == (cat0(A, B) @ C)[16:]
relu(X) == relu(cat1(X, Y))[:, :4]
conv(X, K) == conv(cat0(X, Y), K)[:2]
relu(conv(Y, K)) == relu(conv(cat0(X, Y), K))[2:]
conv(X, K) == conv(X, cat0(K, L))[:, :4]
relu(conv(X, L)) == relu(conv(X, cat0(K, L)))[:, 4:]
# convolution
conv(X, K + L) == conv(X, K) + conv(X, L)
conv(X + Y, K) == conv(X, K) + conv(Y, K)
conv(M + (K + L), M + (K + L)) == conv(L + (K + M), L + (K + M))
relu(conv(M + (K + L), M + (K + L))) == relu(conv(L + (K + M), L + (K + M)))
conv(M * (K * L), M * (K * L)) == conv(L * (K * M), L * (K * M))
relu(conv(M * (K * L), M * (K * L))) == relu(conv(L * (K * M), L * (K * M)))
conv(cat1(M, cat1(K, L)), cat1(M, cat1(K, L))) == conv(cat1(L, cat1(K, M)), cat1(L, cat1(K, M)))
relu(conv(cat1(M, cat1(K, L)), cat1(M, cat1(K, L)))) == relu(conv(cat1(L, cat1(K, M)), cat1(L, cat1(K, M))))
relu(conv(conv(X, K), MID)) == relu(conv(X, K))
relu(relu(conv(X, K))) == relu(conv(relu(conv(X, K)), MID))
relu(X) == relu(conv(X, MID))
relu(conv(relu(conv(X, MID)), K)) == relu(conv(relu(X), K))
relu(conv(relu(conv(X, MID)), MID)) == relu(relu(X))
cat0(relu(X), relu(Y)) == relu(conv(cat0(X, Y), MID))
X + conv(X, K) == conv(X, K + MID)
relu(X + conv(X, K)) == relu(conv(X, K + MID))
cat1(relu(conv(X, K)), relu(X)) == relu(conv(X, cat0(K, MID)))
conv(X, s * MID) == s * X
conv(X, s * MID) == X * (s * XONE)
conv(X, E) == conv(X, big(E))
relu(conv(X, E)) == relu(conv(X, big(E)))
conv(relu(conv(X, K)), E) == conv(relu(conv(X, K)), big(E))
relu(conv(relu(conv(X, K)), E)) == relu(conv(relu(conv(X, K)), big(E)))
conv(X, K) + conv(X, E) == conv(X, K + big(E))
conv(conv(X, E), E) == conv(conv(X, big(E)), big(E))
conv(conv(X, E), K) == conv(conv(X, big(E)), K)
relu(conv(conv(X, E), E)) == relu(conv(conv(X, big(E)), big(E)))
relu(conv(conv(X, E), G)) == relu(conv(conv(X, big(E)), G))
relu(conv(conv(X, E), MID)) == relu(conv(X, big(E)))
conv(relu(conv(X, E)), E) == conv(relu(conv(X, big(E))), big(E))
conv(relu(conv(X, G)), E) == conv(relu(conv(X, G)), big(E))
s * conv(X, E) == conv(s * X, big(E))
s * conv(X, E) == conv(X, s * big(E))
relu(s * conv(X, E)) == relu(conv(s * X, big(E)))
relu(s * conv(X, E)) == relu(conv(X, s * big(E)))
conv(relu(conv(X, MID)), E) == conv(relu(X), big(E))
cat0(conv(X, E), conv(Y, E)) == conv(cat0(X, Y), big(E))
cat1(conv(X, K), conv(X, E)) == conv(X, cat0(K, big(E)))
cat1(relu(conv(X, K)), relu(conv(X, E))) == relu(conv(X, cat0(K, big(E))))
conv(X, K) + s * conv(X, K) == conv(X + s * X, K)
conv(X, K) + s * conv(X, K) == conv(X, K + s * K)
relu(conv(X + s * X, K)) == relu(conv(X, K + s * K))
s * conv(X * Y, K) == conv(Y * (s * X), K)
relu(conv(X * Y, s * K)) == relu(conv(Y * (s * X), K))
s * conv(X, K * L) == conv(X, L * (s * K))
relu(conv(s * X, K * L)) == relu(conv(X, L * (s * K)))
conv(s * (K * L), s * (K * L)) == conv(L * (s * K), L * (s * K))
relu(conv(s * (K * L), s * (K * L))) == relu(conv(L * (s * K), L * (s * K)))
s * conv(X, K) == conv(s * X, K)
s * conv(X, K) == conv(X, s * K)
relu(s * conv(X, K)) == relu(conv(X, s * K))
s * (X + conv(X, K)) == s * X + conv(s * X, K)
s * (Y * conv(X, K)) == Y * conv(s * X, K)
s * (Y * conv(X, K)) == Y * conv(X, s * K)
s * conv(conv(X, K), L) == conv(conv(s * X, K), L)
s * conv(conv(X, K), L) == conv(conv(X, s * K), L)
relu(conv(conv(X, K), s * L)) == relu(conv(conv(s * X, K), L))
relu(conv(conv(X, K), s * L)) == relu(conv(conv(X, s * K), L))
s * cat1(X, conv(X, K)) == cat1(s * X, conv(s * X, K))
s * cat0(X, conv(X, K)) == cat0(s * X, conv(s * X, K))
s * (s * conv(X, K)) == conv(s * X, s * K)
s * (s * conv(X, K)) == conv(s * (s * X), K)
cat0(conv(X, K), s * conv(X, K)) == conv(cat0(X, s * X), K)
cat1(conv(X, K), s * conv(X, K)) == conv(X, cat0(K, s * K))
relu(cat1(X, conv(Y, K))) == cat1(relu(X), relu(conv(Y, K)))
relu(cat0(X, conv(Y, K))) == cat0(relu(X), relu(conv(Y, K)))
conv(X, K) + conv(Y, L) == conv(cat1(X, Y), cat1(K, L))
cat0(conv(X, K), conv(Y, K)) == conv(cat0(X, Y), K)
cat1(conv(X, K), conv(X, L)) == conv(X, cat0(K, L))
cat0(relu(conv(X, K)), relu(conv(Y, K))) == relu(conv(cat0(X, Y), K))
# pooling
pool(X) == conv(X, AVG)
pool(relu(conv(X, K))) == conv(relu(conv(X, K)), AVG)
pool(X + Y) == pool(X) + pool(Y)
conv(X, K) + pool(X) == conv(X, K + AVG)
pool(pool(X)) == conv(conv(X, AVG), AVG)
relu(conv(pool(X), K)) == relu(conv(conv(X, AVG), K))
relu(pool(pool(X))) == relu(conv(conv(X, AVG), AVG))
relu(conv(pool(X), MID)) == relu(conv(X, AVG))
pool(relu(pool(X))) == conv(relu(conv(X, AVG)), AVG)
s * pool(X) == conv(s * X, AVG)
s * pool(X) == conv(X, s * AVG)
relu(s * pool(X)) == relu(conv(s * X, AVG))
cat0(pool(X), pool(Y)) == conv(cat0(X, Y), AVG)
conv(relu(X), AVG) == pool(relu(conv(X, MID)))
pool(X) == conv(X, pool(MID))
s * pool(X) == pool(s * X)
s * (X + pool(X)) == s * X + pool(s * X)
s * (Y * pool(X)) == Y * pool(s * X)
s * conv(pool(X), K) == conv(pool(s * X), K)
relu(conv(pool(X), s * K)) == relu(conv(pool(s * X), K))
s * pool(pool(X)) == pool(pool(s * X))
s * cat1(X, pool(X)) == cat1(s * X, pool(s * X))
s * (s * pool(X)) == pool(s * (s * X))
pool(X) + s * pool(X) == pool(X + s * X)
cat0(pool(X), s * pool(X)) == pool(cat0(X, s * X))
s * pool(X * Y) == pool(Y * (s * X))
s * pool(conv(X, K)) == pool(conv(s * X, K))
s * pool(conv(X, K)) == pool(conv(X, s * K))
s * conv(X, pool(K)) == conv(X, pool(s * K))
conv(s * pool(K), s * pool(K)) == conv(pool(s * K), pool(s * K))
relu(conv(s * X, pool(K))) == relu(conv(X, pool(s * K)))
cat0(pool(X), pool(Y)) == pool(cat0(X, Y))
cat0(largest(X), largest(Y)) == largest(cat0(X, Y))
""")
