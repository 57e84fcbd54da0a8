"""Numbers of the identity test: residues modulo a chain of primes, with a real shadow. See testing.py for the argument.

The primes p_0 > p_1 > ... satisfy p_(l+1) | p_l - 1, so that exp at level l is a power of an element of order p_(l+1)
whose exponent is the argument at level l + 1: exp(a + b) = exp a * exp b holds, and one level is used up by every
nested exponential. Each prime is 7 modulo 8, so -1 is no square, 2 is one, and a square has exactly one root that is
itself a square: `a -> a^((p+1)/4)` is that root, and multiplicative. 3, 5 and 7 are squares, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

PRIMES = (1865129951, 37302599, 305759, 152879)
"""Each divides its predecessor minus 1. All are below 2^31, so products fit 64 bits."""
_WINDOW = 15
# So few residues are inverted one by one, as far as arrays are concerned.
_FEW = 64
# Shadows closer than this, relative to their size, may be equal.
_CLOSE = 1e-9

_U = np.uint64


@dataclass(frozen=True, slots=True)
class Exponential:
    """Residues of exp of a number, and where they are defined."""

    f: np.ndarray  # residues, as of Numbers
    d: np.ndarray  # where they are defined
    # Whether they are those of the power (p_l - 1)/p_(l+1) of exp, which is of order p_(l+1), so that it can in turn be
    # raised to any residue of the next level: c * log a.
    reduced: bool = False


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array of numbers."""

    f: np.ndarray  # residues, uint64 [levels, draws, axes...]
    d: np.ndarray  # where the residues are defined, bool, of a shape that broadcasts to f's
    r: np.ndarray  # the shadow, float64 [1, draws, axes...]; NaN where it is not known (or the number is not a number)
    e: Exponential | None = None  # of the number's exponential, where that does not follow from f (logarithms)

    def mapped(self, how: Sequence[object]) -> Numbers:
        """Every part indexed by `how` (slices and new axes)."""
        key = tuple(how)
        e = None if self.e is None else Exponential(self.e.f[key], self.e.d[key], self.e.reduced)  # type: ignore[index]
        return Numbers(self.f[key], self.d[key], self.r[key], e)  # type: ignore[index]


@lru_cache(maxsize=8)
def _tables(level: int) -> tuple[np.ndarray, np.ndarray]:
    """Powers g^i and g^(i*2^15) modulo the level's prime, g an element of the order of the next one."""
    p, q = PRIMES[level], PRIMES[level + 1]
    h = next(g for h in range(2, 100) if (g := pow(h, (p - 1) // q, p)) != 1)
    tables = []
    for base in (h, pow(h, 1 << _WINDOW, p)):
        table = np.ones(1, dtype=_U)
        for bit in range(_WINDOW):
            table = np.concatenate([table, table * _U(pow(base, 1 << bit, p)) % _U(p)])
        tables.append(table)
    return tables[0], tables[1]


def mix(x: np.ndarray) -> np.ndarray:
    """A pseudo-random permutation of 64-bit numbers (the finalizer of splitmix64, Steele et al. 2014)."""
    x = (x ^ (x >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U(27))) * _U(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> _U(31)))


class Field:
    """Arithmetic on Numbers of so many levels and draws.

    `levels` are how many primes are used, 1 to len(PRIMES); the draws are evaluated side by side. The seed is of
    inputs, oracles and of the base of exponentials; with `roots` there are square roots, for which residues have to go
    with the sign.
    """

    def __init__(self, levels: int, draws: int, seed: int, roots: bool = True) -> None:
        self.levels, self.draws, self.roots = levels, draws, roots
        self.primes = PRIMES[:levels]
        rng = np.random.default_rng([seed, 1])
        self._keys = rng.integers(0, 1 << 63, (levels, draws), dtype=_U)
        self._shadow_keys = rng.integers(0, 1 << 63, (1, draws), dtype=_U)
        # exp is to a random base of that order in every round: the exponent is scaled.
        self._bases = [rng.integers(1, q, draws, dtype=_U) for q in self.primes[1:]]
        self._residues = [_U(p) for p in self.primes]

    def p(self, like: np.ndarray) -> np.ndarray:
        """The primes, in a shape that broadcasts with an array of residues."""
        return np.array(self.primes, dtype=_U).reshape(-1, *[1] * (like.ndim - 1))

    # Making numbers

    def constant(self, residues: Sequence[int | None], real: float) -> Numbers:
        """One number in all rounds; None where it has no residue."""
        f = np.array([r or 0 for r in residues[: self.levels]], dtype=_U).reshape(-1, 1)
        d = np.array([r is not None for r in residues[: self.levels]]).reshape(-1, 1)
        return Numbers(f, d, np.full((1, 1), real))

    def integers(self, values: np.ndarray) -> Numbers:
        """Whole numbers, known in all rounds: values [axes...], int64."""
        whole = values[None, None]
        f = (whole % np.array(self.primes, dtype=np.int64).reshape(-1, *[1] * (whole.ndim - 1))).astype(_U)
        return Numbers(f, np.ones((1, 1, *[1] * values.ndim), dtype=bool), whole.astype(np.float64))

    def drawn(self, keys: np.ndarray, scale: float, whole: int = 0) -> Numbers:
        """Random numbers, equal where keys [axes...] are: residues uniform, the shadow signed and of about the scale.

        Where there are roots, a residue is a square exactly if the shadow is positive, so sqrt(x^2) = |x| holds for a
        drawn x and products of such. With `whole`, integers below it instead, the same in residues and shadow.
        """
        column = [1] * keys.ndim
        real = mix(keys[None, None] ^ self._shadow_keys.reshape(1, -1, *column))
        if whole:
            small = real % _U(whole)
            f = np.broadcast_to(small, (self.levels, *small.shape[1:]))
            return Numbers(f, np.ones_like(f, dtype=bool), small.astype(np.float64))
        unit = (real >> _U(11)).astype(np.float64) / (1 << 53)
        # Away from 0, of either sign.
        r = np.where(unit < 0.5, -1.0, 1.0) * (0.25 + 1.5 * np.abs(2 * unit - 1)) * scale
        raw = mix(keys[None, None] ^ self._keys.reshape(self.levels, -1, *column))
        p = self.p(raw)
        f = _U(1) + raw % (p - _U(1))
        if self.roots:
            # -1 is no square.
            square = f * f % p
            f = np.where(r > 0, square, p - square)
        return Numbers(f, np.ones((1, *[1] * (f.ndim - 1)), dtype=bool), r)

    # Arithmetic

    def add(self, a: Numbers, b: Numbers) -> Numbers:
        """a + b."""
        r = _real(a.r + b.r, a.r, b.r)
        e = None
        if a.e is not None or b.e is not None:
            x, y = self._alike(a, b)
            e = Exponential(x.f * y.f % self.p(x.f * y.f), x.d & y.d, x.reduced)
        return Numbers((s := a.f + b.f) % self.p(s), _finite(a.d & b.d, r), r, e)

    def mul(self, a: Numbers, b: Numbers, whole: int | None = None) -> Numbers:
        """a * b; `whole` is b's value where b is a constant that is a whole number."""
        product = a.f * b.f
        r = _real(a.r * b.r, a.r, b.r)
        e = None
        if a.e is not None and whole is not None:
            e = Exponential(self._power(a.e.f, [whole % (q - 1) for q in self.primes]), a.e.d, a.e.reduced)
        elif (a.e is None) != (b.e is None):
            e = self._times(a, b) if b.e is None else self._times(b, a)
        return Numbers(product % self.p(product), _finite(a.d & b.d, r), r, e)

    def neg(self, a: Numbers) -> Numbers:
        """-a."""
        p = self.p(a.f)
        e = None if a.e is None else Exponential(self._inverse(a.e.f), a.e.d, a.e.reduced)
        return Numbers((p - a.f) % p, a.d, -a.r, e)

    def recip(self, a: Numbers) -> Numbers:
        """1/a; undefined at a residue of 0."""
        r = np.where(np.isinf(a.r) | (a.r == 0), np.nan, 1 / a.r)
        return Numbers(self._inverse(a.f), a.d & (a.f != 0), r)

    def sqrt(self, a: Numbers) -> Numbers:
        """The root that is a square; undefined where there is none, or the shadow is negative."""
        root, square = self._rooted(a)
        return Numbers(root, a.d & square & (a.r >= 0), np.sqrt(a.r))

    def goes_with_sign(self, a: Numbers) -> np.ndarray:
        """Where residues are squares exactly if the shadows are positive, as those of inputs are."""
        return np.asarray(self._rooted(a)[1] == (a.r > 0))

    def _rooted(self, a: Numbers) -> tuple[np.ndarray, np.ndarray]:
        """What is the root of the residues that are squares, and which are."""
        root = self._power(a.f, [(p + 1) // 4 for p in self.primes])
        return root, root * root % self.p(root) == a.f

    def exp(self, a: Numbers) -> Numbers:
        """exp a; of -inf it is 0."""
        known = self.exponential(a)
        f, d = known.f, known.d & (not known.reduced)
        gone = np.isneginf(a.r)
        r = np.exp(a.r)
        r = np.where(gone, 0.0, np.where((r == 0) | np.isinf(r), np.nan, r))
        if gone.any():
            f, d = np.where(gone, _U(0), f), d | gone
        return Numbers(f, d, r)

    def log(self, a: Numbers) -> Numbers:
        """log a: no residue, but that of its exponential."""
        known = a.d & (a.f != 0) & (a.r > 0)
        return Numbers(np.zeros_like(a.f), np.zeros_like(known), self._log(a.r), Exponential(a.f, known))

    @staticmethod
    def _log(r: np.ndarray) -> np.ndarray:
        return np.where(r > 0, np.log(r), np.nan)

    def reduced(self, e: Exponential) -> Exponential:
        """The power of it that is of the order of the next prime; undefined at the last level."""
        if e.reduced:
            return e
        orders = [(p - 1) // q for p, q in zip(self.primes, self.primes[1:], strict=False)]
        d = np.array(np.broadcast_to(e.d, (self.levels, *e.d.shape[1:])))
        d[-1] = False
        return Exponential(self._power(e.f, [*orders, 1]), d, True)

    def _alike(self, a: Numbers, b: Numbers) -> tuple[Exponential, Exponential]:
        """Both exponentials, reduced where one of them is."""
        x, y = self.exponential(a), self.exponential(b)
        return (self.reduced(x), self.reduced(y)) if x.reduced or y.reduced else (x, y)

    def _times(self, a: Numbers, c: Numbers) -> Exponential:
        """exp(a*c), by the residues of c at the next level."""
        assert a.e is not None
        x = self.reduced(a.e)
        shape = np.broadcast_shapes(x.f.shape, c.f.shape)
        square, exponent = np.broadcast_to(x.f, shape), np.zeros(shape, dtype=_U)
        exponent[:-1] = np.broadcast_to(c.f, shape)[1:]
        d = np.zeros(np.broadcast_shapes(x.d.shape, c.d.shape, (self.levels, *[1] * (c.d.ndim - 1))), dtype=bool)
        d[:-1] = np.broadcast_to(x.d, d.shape)[:-1] & np.broadcast_to(c.d, d.shape)[1:]
        p, f = self.p(square), np.ones(shape, dtype=_U)
        while exponent.any():
            f = np.where(exponent & _U(1) == 1, f * square % p, f)
            square, exponent = square * square % p, exponent >> _U(1)
        return Exponential(f, d, True)

    def exponential(self, a: Numbers) -> Exponential:
        """The residues of exp a."""
        if a.e is not None:
            return a.e
        f = np.ones((self.levels, *np.broadcast_shapes(a.f.shape[1:], (self.draws,) + (1,) * (a.f.ndim - 2))), dtype=_U)
        d = np.zeros((self.levels, *a.d.shape[1:]), dtype=bool)
        d[:-1] = np.broadcast_to(a.d, (self.levels, *a.d.shape[1:]))[1:]
        mask = _U((1 << _WINDOW) - 1)
        for level, base in enumerate(self._bases):
            low, high = _tables(level)
            exponent = a.f[level + 1] * base.reshape(-1, *[1] * (a.f.ndim - 2)) % self._residues[level + 1]
            steps = high[(exponent >> _U(_WINDOW)).astype(np.intp)]
            f[level] = low[(exponent & mask).astype(np.intp)] * steps % self._residues[level]
        return Exponential(f, d)

    def power(self, a: Numbers, n: int) -> Numbers:
        """a^n for a whole n."""
        r = _real(a.r ** float(n), a.r, a.r)
        d = a.d if n >= 0 else a.d & (a.f != 0)
        return Numbers(self._power(a.f, [n % (p - 1) for p in self.primes], zero=n == 0), d, r)

    def oracle(self, name: int, args: Sequence[Numbers], real: np.ndarray, parity: int = 0) -> Numbers:
        """A random function of the residues, level by level; odd (-1), even (1) or neither in its first argument."""
        first = args[0].f
        p = self.p(first)
        key = np.minimum(first, (p - first) % p) if parity else first
        d = args[0].d
        for a in args[1:]:
            key, d = mix(key) + a.f, d & a.d
        column = [1] * (key.ndim - 2)
        f = mix(mix(key + _U(name << 40)) ^ self._keys.reshape(self.levels, -1, *column)) % p
        if parity < 0:
            f = np.where(first == 0, _U(0), np.where(key == first, f, (p - f) % p))
        return Numbers(f, d, real)

    # Choices, by the shadow

    def truth(self, holds: np.ndarray, known: np.ndarray) -> Numbers:
        """0 or 1, where that is known."""
        f = np.broadcast_to(holds.astype(_U), (self.levels, *holds.shape[1:]))
        return Numbers(f, known, np.where(known, holds.astype(float), np.nan))

    def where(self, p: Numbers, a: Numbers, b: Numbers) -> Numbers:
        """a where p is not 0, else b."""
        taken = p.r != 0
        e = None
        if a.e is not None or b.e is not None:
            x, y = self._alike(a, b)
            e = Exponential(np.where(taken, x.f, y.f), np.where(taken, x.d, y.d) & ~np.isnan(p.r), x.reduced)
        d = np.where(taken, a.d, b.d) & ~np.isnan(p.r)
        return Numbers(np.where(taken, a.f, b.f), d, np.where(np.isnan(p.r), np.nan, np.where(taken, a.r, b.r)), e)

    def less(self, a: Numbers, b: Numbers, equal: bool) -> Numbers:
        """a < b, or a <= b; undefined where they may be equal and are not known to be."""
        near, same = _near(a.r, b.r), self._same(a, b)
        return self.truth(np.where(near, equal, a.r < b.r), (same | ~near) & ~np.isnan(a.r) & ~np.isnan(b.r))

    def equal(self, a: Numbers, b: Numbers) -> Numbers:
        """a == b."""
        near, same = _near(a.r, b.r), self._same(a, b)
        return self.truth(near, (same | ~near) & ~np.isnan(a.r) & ~np.isnan(b.r))

    def _same(self, a: Numbers, b: Numbers) -> np.ndarray:
        """Whether a and b are equal in every residue that is defined, [1, draws, axes...]."""
        same = (a.f == b.f) | ~(a.d & b.d)
        # Infinities have no residues, and are equal when they are near.
        return np.asarray(same.all(axis=0, keepdims=True) & (a.d & b.d).any(axis=0, keepdims=True) | np.isinf(a.r))

    # Reductions, over one dimension, with a weight for each element

    def sum(self, a: Numbers, dim: int, weights: np.ndarray) -> Numbers:
        """The sum of weight times element."""
        column = weights.reshape(-1, *[1] * (a.f.ndim - 1 - dim))
        p = self.p(a.f)
        each = a.f * (column.astype(_U) % p)
        if int(weights.sum()) * self.primes[0] >= 1 << 64:
            each %= p
        f = np.sum(each, axis=dim) % p[..., 0]
        scaled = a.r * column
        r = _real(np.sum(scaled, axis=dim), np.max(a.r, axis=dim), np.min(a.r, axis=dim))
        e = None
        if a.e is not None:
            e = Exponential(self._weighted_product(a.e.f, dim, weights), _all(a.e.d, dim), a.e.reduced)
        return Numbers(f, _finite(_all(a.d, dim), r), r, e)

    def product(self, a: Numbers, dim: int, weights: np.ndarray) -> Numbers:
        """The product of element to the power of its weight."""
        r = np.prod(a.r ** weights.reshape(-1, *[1] * (a.r.ndim - 1 - dim)), axis=dim)
        r = np.where(np.isinf(r) | (r == 0), np.nan, r)
        return Numbers(self._weighted_product(a.f, dim, weights), _all(a.d, dim), r)

    def _weighted_product(self, f: np.ndarray, dim: int, weights: np.ndarray) -> np.ndarray:
        p = self.p(f)[..., 0]
        total = np.ones(f.shape[:dim] + f.shape[dim + 1 :], dtype=_U)
        for n, w in enumerate(weights.tolist()):
            part = np.take(f, n, axis=dim)
            total = total * self._power(part, [w % (q - 1) for q in self.primes]) % p
        return total

    def largest(self, a: Numbers, dim: int) -> Numbers:
        """The element with the largest shadow; undefined where another one may be as large and is not the same."""
        shape = np.broadcast_shapes(a.f.shape, a.r.shape)
        f, d = np.broadcast_to(a.f, shape), np.broadcast_to(a.d, shape)
        r = np.broadcast_to(a.r, (1, *shape[1:]))
        place = np.argmax(np.where(np.isnan(r), np.inf, r), axis=dim, keepdims=True)

        def pick(x: np.ndarray) -> np.ndarray:
            at = np.broadcast_to(place, (x.shape[0], *place.shape[1:]))
            return np.take_along_axis(x, at, axis=dim)

        top, known, best = pick(f), pick(d), pick(r)
        ties = _near(r, best) & ~np.isneginf(r) & (((f != top) & d & known).any(axis=0, keepdims=True))
        sure = ~(ties.any(axis=dim, keepdims=True) | np.isnan(r).any(axis=dim, keepdims=True))
        e = None
        if a.e is not None:
            residues, there = np.broadcast_to(a.e.f, shape), np.broadcast_to(a.e.d, shape)
            e = Exponential(pick(residues), pick(there) & sure, a.e.reduced)
        flat = np.where(sure, best, np.nan)
        drop: list[object] = [slice(None)] * len(shape)
        drop[dim] = 0
        return Numbers(top, known & sure & ~np.isinf(best), flat, e).mapped(drop)

    # Powers modulo the primes

    def _inverse(self, f: np.ndarray) -> np.ndarray:
        """1/f, and 0 of 0: of a product of two by one inversion, of many products at once."""
        result = np.empty_like(f)
        for level, p in enumerate(self._residues):
            flat = f[level].reshape(-1)
            gone = flat == 0
            made = _inverses(np.where(gone, _U(1), flat), p)
            result[level] = np.where(gone, _U(0), made).reshape(f.shape[1:])
        return result

    def _power(self, f: np.ndarray, exponents: Sequence[int], zero: bool = False) -> np.ndarray:
        """f to the power of the level's exponent, by squaring."""
        result = np.ones_like(f)
        if zero:
            return result
        for level, exponent in enumerate(exponents):
            result[level] = _raised(f[level], exponent, self._residues[level])
        return result


def _raised(f: np.ndarray, exponent: int, p: np.uint64) -> np.ndarray:
    """Residues to the power of a number, modulo p, by squaring."""
    square, result = f, np.ones_like(f)
    while exponent:
        if exponent & 1:
            result = result * square % p
        exponent >>= 1
        if exponent:
            square = square * square % p
    return result


def _inverses(f: np.ndarray, p: np.uint64) -> np.ndarray:
    """The inverses of residues that are not 0, a vector, modulo p: 1/a = b/(a*b), by three products an element."""
    half = f.size // 2
    if half < _FEW:
        return _raised(f, int(p) - 2, p)
    a, b = f[:half], f[half : 2 * half]
    both = _inverses(np.concatenate([a * b % p, f[2 * half :]]), p)
    return np.concatenate([both[:half] * b % p, both[:half] * a % p, both[half:]])


def _near(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    finite = np.isfinite(a) & np.isfinite(b)
    close = np.abs(np.where(finite, a - b, 0.0)) <= _CLOSE * (np.abs(a) + np.abs(b))
    return np.asarray(np.where(finite, close, a == b))


def _real(result: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The shadow; one that overflowed is not known, which is not the same as infinite."""
    return np.where(np.isinf(result) & np.isfinite(a) & np.isfinite(b), np.nan, result)


def _finite(d: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Infinities have no residues."""
    infinite = np.isinf(r)
    return d & ~infinite if infinite.any() else d


def _all(d: np.ndarray, dim: int) -> np.ndarray:
    return np.asarray(np.all(d, axis=dim))
