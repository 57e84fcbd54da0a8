"""The C++ support code by itself: products of every shape and layout, exact on small integers, by vector width."""

from __future__ import annotations

import platform
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from prism.backends.cpu.machine import describe
from prism.backends.cpu.support import find_compiler

PROGRAM = r"""
#include "core.hpp"
#include "math.hpp"
#include "calls.hpp"
#include "product.hpp"
#include "tiles.hpp"
#include "parts.hpp"
#include "window.hpp"
#include "halves.hpp"
#include "bytes.hpp"
#include <cmath>
#include <cstdio>
#include <type_traits>
#include <vector>
using namespace prism;
static Panels last = {};

static int wrong = 0;
static uint32_t state = 1;
static int draw() {
    state = state * 1664525u + 1013904223u;
    return (int)(state >> 24) % 7 - 3;
}
static void put(float* p, float x) { *p = x; }
static void put(bf16* p, float x) { v_put(p, x); }
static void put(f16* p, float x) { v_put(p, x); }

// c[m][n] += sum a[m][k] b[k][n], or = where it is FRESH, all integers: exact, whatever the order of the sum.
template <class B, bool FRESH = false, class A = float>
void product(int64_t M, int64_t K, int64_t N, bool columns, bool halves = false, bool turned = false) {
    const int64_t am = turned ? 1 : K + 3, ak = turned ? M + 3 : 1, cm = N + 5;
    const int64_t bk = columns ? 1 : N + 2, bn = columns ? K + 2 : 1;
    std::vector<A> a(M * am + K * ak + 64);
    std::vector<float> c(M * cm + 64, 0.5f), exact(M * N), rows(a.size());
    std::vector<B> b((columns ? N * bn : K * bk) + 64);
    for (size_t i = 0; i < a.size(); ++i) put(&a[i], rows[i] = (float)draw());
    std::vector<float> plain(b.size());
    for (size_t i = 0; i < b.size(); ++i) put(&b[i], plain[i] = (float)draw());
    for (int64_t m = 0; m < M; ++m)
        for (int64_t n = 0; n < N; ++n) {
            float sum = 0;
            for (int64_t k = 0; k < K; ++k) sum += rows[m * am + k * ak] * plain[k * bk + n * bn];
            exact[m * N + n] = (FRESH ? 0.0f : 0.5f) + sum;
        }
    std::vector<float> pa(v_room_a(M, K) + 64), pb(v_room_b(N, K) + 64);
    if constexpr (sizeof(B) == 4 || std::is_same_v<B, bf16>)
        if (halves)
            multiply_halves(FRESH, c.data(), cm, a.data(), am, ak, b.data(), bk, bn, M, K, N, pa.data(), pb.data(),
                            last, 0);
    if constexpr (sizeof(A) == 4)
        if (!halves)
            multiply(FRESH, c.data(), cm, a.data(), am, ak, b.data(), bk, bn, M, K, N, pa.data(), pb.data(), last, 0);
    for (int64_t i = 0; i < (int64_t)c.size(); ++i) {
        int64_t m = i / cm, n = i % cm;
        float wanted = m < M && n < N ? exact[m * N + n] : 0.5f;
        if (c[i] != wanted && wrong++ < 5)
            printf("M %d K %d N %d columns %d halves %d size %d: at %d, %d %g, not %g\n", (int)M, (int)K, (int)N,
                   columns, halves, (int)sizeof(B), (int)m, (int)n, c[i], wanted);
    }
}

// The same of bytes plus numbers, up to their types' ends: what is taken out of the sum comes back exactly.
template <class A, class B, bool FRESH>
void bytes(int64_t M, int64_t K, int64_t N, int how, int32_t sa, int32_t sb) {
    const bool columns = how & 1, turned = how & 2, computed = how & 4, held = (M + K + N) % 2;
    const int64_t am = turned ? 1 : K + (K % 3), ak = turned ? M + 3 : 1, cm = N + 5;
    const int64_t bk = columns ? 1 : N + 2, bn = columns ? K + 2 : 1;
    std::vector<A> a(M * am + K * ak);
    std::vector<B> b(columns ? N * bn : K * bk);
    std::vector<Level<A>> a_levels(a.size());
    std::vector<Level<B>> b_levels(b.size());
    std::vector<int32_t> c(M * cm, 7);
    auto byte = [] {
        state = state * 1664525u + 1013904223u;
        return state >> 23 & 1 ? (int)(state >> 24) : 255;
    };
    for (auto& x : a) x = (A)byte();
    for (auto& x : b) x = (B)(byte() ^ 128);
    for (size_t i = 0; i < a.size(); ++i) a_levels[i].x = a[i];
    for (size_t i = 0; i < b.size(); ++i) b_levels[i].x = b[i];
    std::vector<float> pa(v_room_a(M, K)), pb(v_room_b(N, K));
    auto compute = [&](auto* first, auto* second) {
        for (auto& x : c) x = 7;
        multiply_bytes(FRESH, c.data(), cm, first, am, ak, second, bk, bn, M, K, N, pa.data(), pb.data(), last, held,
                       sa, sb);
    };
    if (held) v_hold(b.data(), b.size());
    if (computed) {
        if ((M + N) % 2) compute(a_levels.data(), b.data());
        else compute(a.data(), b_levels.data());
    } else {
        for (int again = 0; again <= held; ++again) compute(a.data(), b.data());
    }
    v_forget(b.data());
    last = {};
    for (int64_t i = 0; i < (int64_t)c.size(); ++i) {
        int64_t m = i / cm, n = i % cm;
        int32_t wanted = 7;
        if (n < N) {
            if (FRESH) wanted = 0;
            for (int64_t k = 0; k < K; ++k) wanted += (a[m * am + k * ak] + sa) * (b[k * bk + n * bn] + sb);
        }
        if (c[i] != wanted && wrong++ < 5)
            printf("bytes M %d K %d N %d how %d %d %d: at %d, %d %d, not %d\n", (int)M, (int)K, (int)N, how, sa, sb,
                   (int)m, (int)n, c[i], wanted);
    }
}

// Values of all 24 bits: as precise as sums in float32, whether they are taken apart or not. `what` is done to a row
// and to a column.
enum class Odd { none, tiny, zero, huge, infinite, nan };
template <class B, bool FRESH> void precise(int64_t M, int64_t K, int64_t N, int how, Odd what) {
    const bool columns = how & 1, turned = how & 2, held = how & 4;
    const int64_t am = turned ? 1 : K + 3, ak = turned ? M + 3 : 1, cm = N + 5;
    const int64_t bk = columns ? 1 : N + 2, bn = columns ? K + 2 : 1;
    std::vector<float> a(M * am + K * ak + 64), c(M * cm, 0.5f), pa(v_room_a(M, K)), pb(v_room_b(N, K));
    std::vector<B> b((columns ? N * bn : K * bk) + 64);
    auto value = [] {
        state = state * 1664525u + 1013904223u;
        return ldexpf((float)(int32_t)state, (int)(state >> 8) % 9 - 33);
    };
    for (auto& x : a) x = value();
    for (auto& x : b) put(&x, value());
    const float odd[] = {1, 1e-33f, 0, 5e36f, INFINITY, NAN};
    if (what != Odd::none) {
        for (int64_t k = 0; k < K; ++k) a[M / 2 * am + k * ak] *= what > Odd::huge && k ? 1 : odd[(int)what];
        if (what <= Odd::huge && sizeof(B) == 4)
            for (int64_t k = 0; k < K; ++k) {
                B* p = &b[k * bk + N / 2 * bn];
                put(p, v_one(p) * (what == Odd::huge ? 1e-38f : odd[(int)what] * (what == Odd::tiny ? 1e33f : 1)));
            }
    }
    if (held) v_hold(b.data(), b.size() * sizeof(B));
    const int64_t uses = K % 3 ? 9 : 0;
    for (int again = 0; again < 2; ++again) {
        for (auto& x : c) x = 0.5f;
        multiply(FRESH, c.data(), cm, a.data(), am, ak, b.data(), bk, bn, M, K, N, pa.data(), pb.data(), last, uses);
        for (int64_t i = 0; i < (int64_t)c.size(); ++i) {
            const int64_t m = i / cm, n = i % cm;
            double wanted = n < N && FRESH ? 0 : 0.5, sizes = wanted;
            for (int64_t k = 0; n < N && k < K; ++k) {
                const double term = (double)a[m * am + k * ak] * v_one(&b[k * bk + n * bn]);
                wanted += term;
                sizes += fabs(term);
            }
            if (std::isfinite(sizes) && sizes > 0x1p127) continue;  // what overflows does so in some order
            const bool same = std::isfinite(wanted) ? fabs(c[i] - wanted) <= 0x1p-20 * sizes + 0x1p-149
                              : std::isnan(wanted)  ? std::isnan(c[i]) : c[i] == (float)wanted;
            if (!same && wrong++ < 5)
                printf("M %d K %d N %d how %d odd %d size %d: at %d, %d %g, not %g\n", (int)M, (int)K, (int)N, how,
                       (int)what, (int)sizeof(B), (int)m, (int)n, c[i], wanted);
        }
    }
    v_forget(b.data());
    last = {};
}

template <class S> void stores(int64_t shift, int64_t count, bool past) {
    std::vector<S> tensor(count + 3 * VL + 64);
    for (auto& x : tensor) put(&x, 9.0f);
    int64_t base = 0;
    while ((uintptr_t)(tensor.data() + base) % 64) ++base;
    S* p = tensor.data() + base + shift;
    int64_t n = 0;
    for (; n + VL <= count; n += VL) v_out(past, Whole{}, p + n, v_all((float)(n % 5)), VL);
    if (n < count) v_out(past, Part{}, p + n, v_all((float)(n % 5)), count - n);
    v_fence(past);
    for (int64_t i = 0; i < count; ++i) wrong += v_one(p + i) != (float)(i / VL * VL % 5);
    wrong += v_one(p + count) != 9.0f;
    if (shift) wrong += v_one(p - 1) != 9.0f;
}

// An operand that is held is packed once: what is written to it later counts when it is forgotten.
template <class B> void holds(int64_t M, int64_t K, int64_t N) {
    std::vector<float> a(M * K, 1.0f), c(M * N), pa(v_room_a(M, K) + 64), pb(v_room_b(N, K) + 64);
    std::vector<B> b(K * N + 64);
    auto sums = [&](const B* from, int64_t width) {
        multiply(true, c.data(), width, a.data(), K, 1, from, N, 1, M, K, width, pa.data(), pb.data(), last, 0);
        bool same = true;
        for (int64_t i = 0; i < M * width; ++i) same = same && c[i] == c[0];
        return same ? c[0] : -1.0f;
    };
    auto write = [&](float x) {
        for (auto& place : b) put(&place, x);
    };
    write(1.0f);
    v_hold(b.data(), K * N * sizeof(B));
    wrong += sums(b.data(), N) != K;
    wrong += sums(b.data() + 1, N - 7) != K;
    write(2.0f);
    wrong += sums(b.data(), N) != K;
    wrong += sums(b.data() + 1, N - 7) != K;
    wrong += sums(b.data() + 2, N - 7) != 2 * K;
    v_forget(b.data());
    last = {};
    wrong += sums(b.data(), N) != 2 * K;
    wrong += sums(b.data() + 1, N - 7) != 2 * K;
}

// So is one of columns, of which few rows take short sums.
template <class B> void holds_columns(int64_t M, int64_t K, int64_t N) {
    std::vector<float> a(M * K), c(M * N), pa(v_room_a(M, K) + 64), pb(v_room_b(N, K) + 64);
    std::vector<B> b(K * N);
    for (int64_t m = 0; m < M; ++m)
        for (int64_t k = 0; k < K; ++k) a[m * K + k] = m + 1 + k % 2;
    for (int64_t n = 0; n < N; ++n)
        for (int64_t k = 0; k < K; ++k) put(&b[n * K + k], n % 5 + k % 3);
    for (bool held : {false, true}) {
        if (held) v_hold(b.data(), K * N * sizeof(B));
        multiply(true, c.data(), N, a.data(), K, 1, b.data(), 1, K, M, K, N, pa.data(), pb.data(), last, 0);
        for (int64_t m = 0; m < M; ++m)
            for (int64_t n = 0; n < N; ++n) {
                int64_t sum = 0;
                for (int64_t k = 0; k < K; ++k) sum += (m + 1 + k % 2) * (n % 5 + k % 3);
                wrong += c[m * N + n] != sum;
            }
    }
    v_forget(b.data());
    last = {};
}

// Two axes of pixels and taps and an image beside them: whole numbers, so exact. `what` stands at a place of x, or of
// the weights, as a number that is not finite, or is too large to be taken apart.
template <class X, class W>
void window(int64_t K, int64_t M, int64_t height, int64_t width, int64_t stride, int64_t dilation, int64_t pad, int how,
            Odd what = Odd::none) {
    const bool fresh = how & 1, held = how & 2, last_k = how & 4, in_weights = how & 8;
    const bool halves = sizeof(W) == 2 && how & 16;
    const int64_t images = 2, tall = 3, wide = 2 + how % 3;
    const int64_t rows = (height - 1) * stride + (tall - 1) * dilation + 1 - 2 * pad;
    const int64_t columns = (width - 1) * stride + (wide - 1) * dilation + 1 - 2 * pad;
    if (rows < 1 || columns < 1) return;
    const int64_t xk = last_k ? 1 : rows * columns, step = last_k ? K : 1, image = K * rows * columns;
    const int64_t wk = last_k ? 1 : tall * wide, tap = last_k ? K : 1, wm = K * tall * wide;
    const int64_t cm = images * height * width + 5;
    std::vector<X> x(images * image);
    std::vector<W> w(M * wm);
    std::vector<float> c(M * cm, 0.5f);
    for (auto& v : x) put(&v, draw());
    for (auto& v : w) put(&v, draw());
    const float odd[] = {1, 0, 0, 5e36f, INFINITY, NAN};
    if (what != Odd::none) in_weights ? put(&w[w.size() / 2], odd[(int)what]) : put(&x[x.size() / 2], odd[(int)what]);
    const int64_t far = (int64_t)1 << 40;
    const Along along[] = {{images, 1, 1, 1, image, 0, -far, far, 0, height * width},
                           {height, stride, dilation, tall, columns * step, -pad, 0, rows, wide * tap, width},
                           {width, stride, dilation, wide, step, -pad, 0, columns, tap, 1}};
    std::vector<int64_t> taps;
    const int64_t left_out = how % 5;
    for (int64_t i = 0; i < tall * wide; ++i)
        if (i != left_out) taps.insert(taps.end(), {0, i / wide, i % wide});
    const int64_t places = along[0].room() * along[1].room() * along[2].room(), many = taps.size() / 3;
    std::vector<float> pa(v_room_seen(places, K, M, tall * wide)), pb(v_room_weights(K, M, tall * wide));
    if (held) v_hold(w.data(), w.size() * sizeof(W));
    Seen seen = {};
    for (int again = 0; again < 2; ++again) {
        for (auto& v : c) v = 0.5f;
        multiply_window(fresh, c.data(), cm, x.data() - pad * (columns + 1) * step, xk, w.data(), wm, wk, along, 3,
                        taps.data(), many, M, K, halves, pa.data(), pb.data(), last, 2, how % 3 ? &seen : nullptr, 2);
        for (int64_t i = 0; i < (int64_t)c.size(); ++i) {
            const int64_t m = i / cm, n = i % cm / (height * width), h = i % cm / width % height, l = i % cm % width;
            double wanted = n < images && fresh ? 0 : 0.5;
            for (int64_t t = 0; n < images && t < many; ++t) {
                const int64_t p = h * stride + taps[3 * t + 1] * dilation - pad;
                const int64_t q = l * stride + taps[3 * t + 2] * dilation - pad;
                if (p < 0 || q < 0 || p >= rows || q >= columns) continue;
                for (int64_t k = 0; k < K; ++k)
                    wanted += (double)v_one(&x[n * image + k * xk + (p * columns + q) * step]) *
                              v_one(&w[m * wm + k * wk + (taps[3 * t + 1] * wide + taps[3 * t + 2]) * tap]);
            }
            const bool same = !std::isfinite(wanted) ? std::isnan(wanted) ? std::isnan(c[i]) : c[i] == (float)wanted
                              : what == Odd::huge    ? fabs(c[i] - wanted) <= 1e-5 * (fabs(wanted) + 1e37)
                                                     : c[i] == (float)wanted;
            if (!same && wrong++ < 5)
                printf("K %d M %d of %d x %d stride %d dilation %d pad %d how %d odd %d: at %d, %d %d %d %g, not %g\n",
                       (int)K, (int)M, (int)height, (int)width, (int)stride, (int)dilation, (int)pad, how, (int)what,
                       (int)m, (int)n, (int)h, (int)l, c[i], wanted);
        }
    }
    v_forget(w.data());
    last = {};
}

int main() {
    int drawn = 0;
    for (int64_t K : {1, 45, 64})
        for (int64_t M : {3, 50})
            for (int64_t stride : {1, 2, 3})
                for (int64_t dilation : {1, 2}) {
                    drawn = (drawn * 5 + 7) % 32;
                    const int64_t height = 3 + drawn % 5, width = 5 + drawn * 3 % 17;
                    const int64_t pad = (drawn + stride + dilation) % 3;
                    window<float, float>(K, M, height, width, stride, dilation, pad, drawn);
                    window<bf16, bf16>(K, M, height, width, stride, dilation, pad, drawn);
                    window<f16, f16>(K, M, height, width, stride, dilation, pad, drawn & 15);
                    for (Odd what : {Odd::huge, Odd::infinite, Odd::nan})
                        if (K == 45) window<float, float>(K, M, height, width, stride, dilation, pad, drawn, what);
                }
    for (int64_t K : {7, 65, 300}) {
        holds_columns<float>(4, K, 130);
        holds_columns<bf16>(3, K, 64);
        holds_columns<float>(2, K, 5);
    }
    int how = 0;
    for (int64_t M : {9, 33, 130})
        for (int64_t K : {1, 64, 570})
            for (int64_t N : {70, 161})
                for (Odd what : {Odd::none, Odd::tiny, Odd::zero, Odd::huge, Odd::infinite, Odd::nan})
                    for (int n = 0; n < (what == Odd::none ? 8 : 1); ++n) {
                        how = (how + 3) % 8;
                        precise<float, true>(M, K, N, how, what);
                        precise<f16, false>(M, K, N, how, what);
                        if (M > 100) precise<bf16, true>(M, K, N, how, what);
                    }
    holds<float>(40, 65, 130);
    holds<bf16>(41, 16, 33);
    product<bf16, true>(64, 512, 64, false, true);
    product<bf16>(64, 600, 96, true, true);
    product<float>(48, 320, 64, false, true, true);
    for (int64_t M : {130, 200, 271})  // more than meet all panels at once
        for (bool fresh : {false, true}) {
            const bool turned = M == 200;
            if (fresh) product<float, true>(M, 300, 70, false, false, turned);
            else product<float>(M, 300, 70, true, false, turned);
            if (fresh) product<bf16, true, bf16>(M, 544, 70, false, true, turned);
            else product<bf16>(M, 600, 70, true, true, turned);
        }
    for (int64_t M : {1, 2, 4, 5, 8, 17, 33, 41})
        for (int64_t K : {1, 7, 65, 300})
            for (int64_t N : {1, 3, 16, 33, 130, 300})
                for (bool columns : {false, true}) {
                    product<float>(M, K, N, columns);
                    product<bf16>(M, K, N, columns);
                    product<f16>(M, K, N, columns);
                    product<float>(M, K, N, columns, true);
                    product<bf16>(M, K, N, columns, true);
                    product<float, true>(M, K, N, columns);
                    product<bf16, true>(M, K, N, columns, true);
                    if (!columns) product<float>(M, K, N, columns, false, true);
                }
    for (int64_t M : {1, 4, 8, 9, 16, 41, 64})
        for (int64_t K : {1, 7, 33, 64, 96, 320, 576})
            for (int64_t N : {1, 33, 64})
                for (bool columns : {false, true}) {
                    product<bf16, false, bf16>(M, K, N, columns, true);
                    product<bf16, true, bf16>(M, K, N, columns, true);
                    product<bf16, false, bf16>(M, K, N, columns, true, true);
                }
    for (int64_t M : {1, 3, 8, 9, 16, 40, 64})
        for (int64_t K : {1, 4, 7, 64, 65, 130, 192})
            for (int64_t N : {1, 31, 64, 97})
                for (int how = 0; how < 8; ++how) {
                    bytes<uint8_t, int8_t, true>(M, K, N, how, -131, 0);
                    bytes<int8_t, int8_t, false>(M, K, N, how, 0, 0);
                    bytes<uint8_t, uint8_t, false>(M, K, N, how, -3, -77);
                    bytes<int8_t, uint8_t, true>(M, K, N, how, 12, -128);
                }
    for (int64_t shift : {0, 1, 8, 16, 31})
        for (int64_t count : {1, 16, 37, 200})
            for (bool past : {false, true}) {
                stores<float>(shift, count, past);
                stores<bf16>(shift, count, past);
                stores<f16>(shift, count, past);
            }
    vf rows[VL];
    for (int64_t i = 0; i < VL; ++i)
        for (int64_t l = 0; l < VL; ++l) rows[i][l] = (float)(i * VL + l);
    vf turned[VL], summed[VL];
    for (int64_t i = 0; i < VL; ++i) turned[i] = summed[i] = rows[i];
    v_transpose<VL>(turned);
    vf sums = v_sums(summed);
    for (int64_t i = 0; i < VL; ++i) {
        wrong += sums[i] != (float)(i * VL * VL + VL * (VL - 1) / 2);
        for (int64_t l = 0; l < VL; ++l) wrong += turned[i][l] != rows[l][i];
    }
    printf("%d lanes, %lld bytes, %d wrong\n", (int)VL, (long long)v_last_level(), wrong);
    return wrong != 0;
}
"""
X86 = platform.machine().lower() in ("x86_64", "amd64")
MACHINES = (
    {"native": 0, "x86-64": 4, "haswell": 8, "skylake-avx512": 16, "cooperlake": 16, "sapphirerapids": 16}
    if X86
    else {"native": 0}
)
"""Machines to compile for, with the lanes of their vectors; 0: whatever this one has."""


@pytest.mark.parametrize("machine", [m if m == "native" else pytest.param(m, marks=pytest.mark.slow) for m in MACHINES])
def test_products_and_stores_are_exact(machine: str, tmp_path: Path) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("there is no C++ compiler here")
    source, program = tmp_path / "check.cpp", tmp_path / "check"
    source.write_text(PROGRAM)
    headers = files("prism.backends.cpu") / "csrc"
    options = ["-std=c++17", "-O0", "-w", "-fno-math-errno", "-fno-trapping-math", f"-march={machine}", f"-I{headers}"]
    subprocess.run([str(compiler), *options, str(source), "-o", str(program)], check=True, timeout=300)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode == -4:
        pytest.skip(f"this processor cannot run code for {machine}")
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith(", 0 wrong\n")
    cache = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")
    if cache.is_file():
        assert f" {describe().l3_bytes} bytes," in done.stdout, "the launches and the search mean the same cache"
    if MACHINES[machine]:
        assert done.stdout.startswith(f"{MACHINES[machine]} lanes")
