// Matrix products: c[m][n] += sum_k a[m][k] * b[k][n], or = where c is fresh and holds nothing yet. c and a are float32; b
// is as it is stored.
namespace prism __attribute__((visibility("hidden"))) {
constexpr int64_t SHORT = 256;   // terms up to which panels that are kept beat columns one by one (measured)
constexpr int64_t FEW = 4;        // rows up to which columns of b are multiplied one by one
constexpr int64_t STREAMED = 32;  // rows up to which rows of b stream through and are not packed
constexpr int64_t COLUMNS = 256;   // columns of b at a time, where several passes take them
constexpr int TERMS = 16;         // rows of b at a time, half as many where one row takes them all
constexpr int64_t SOON = 8192;    // how far ahead memory is asked for, bytes
constexpr int STREAMS = 4;        // places in memory that a core reads from in turn: more than one draws more of it
constexpr int64_t BLOCK = 256;    // terms that are added one after another before they join the rest of a sum
constexpr int64_t TALL = 16 * MR; // rows of `a` that meet all panels, some of the depth at a time: in the second cache

// A function of which there is one, so that a product takes a compiler no longer than it has to: neither copies where it
// is called, nor of its own for arguments that are constants there.
#ifdef __clang__
#define PRISM_ALONE __attribute__((noinline))
#else
#define PRISM_ALONE __attribute__((noinline, noclone))
#endif
#if __has_builtin(__builtin_shufflevector)
#define PRISM_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PRISM_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, vi{__VA_ARGS__})
#endif

// Neighbours of U rows that are one stream.
constexpr int v_run(int u) { return u < STREAMS ? u : u / STREAMS; }

// U rows of b, contiguous, times M rows of a. The rows are in runs that are `far` rows apart. `soon` is how far ahead of
// them memory is asked for, in elements.
template <int M, int U, class B>
PRISM_ALONE void mul_pass(float* __restrict c, int64_t cm, const float* __restrict a, int64_t am, int64_t ak,
                          const B* __restrict b, int64_t bk, int64_t far, int64_t N, int64_t soon) {
    constexpr int RUN = v_run(U), RUNS = U / RUN;
    float x[M][U];
    auto terms = [&](int64_t step) PRISM_BODY {
        for (int m = 0; m < M; ++m)
            for (int u = 0; u < U; ++u) x[m][u] = a[m * am + (u / RUN * far + u % RUN) * step];
    };
    if (ak == 1) terms(1);  // neighbours, which the compiler reads as vectors
    else terms(ak);
    // A register for each run: of a row for each there would be too few, where the compiler does not know the stride.
    const B* first[RUNS];
    for (int i = 0; i < RUNS; ++i) first[i] = b + i * far * bk;
    auto column = [&](auto full, int64_t n, int64_t lanes) PRISM_BODY {
        vf s[M] = {};
        // Otherwise every x is kept in all lanes on the stack, a vector each; an operand can be broadcast as it is loaded.
        if constexpr (M * U > 16) __asm__ volatile("" : : "r"(&x[0][0]) : "memory");
#pragma GCC unroll 4
        for (int i = 0; i < RUNS; ++i) {
            __asm__("" : "+r"(first[i]));
#pragma GCC unroll 4
            for (int j = 0; j < RUN; ++j) {
                vf w = v_ld(full, first[i] + j * bk, lanes);
                v_ask(first[i] + soon + j * bk);
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m) s[m] += x[m][i * RUN + j] * w;
            }
            first[i] += VL;
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) v_st(full, c + m * cm + n, v_ld(full, c + m * cm + n, lanes) + s[m], lanes);
    };
    int64_t n = 0;
    for (; n + VL <= N; n += VL) column(Whole{}, n, VL);
    if (n < N) column(Part{}, n, N - n);
}

// b's rows contiguous: b streams through, some of its rows at a time, and is not packed.
template <int64_t MOST, class B>
void mul_rows(float* c, int64_t cm, const float* a, int64_t am, int64_t ak, const B* b, int64_t bk, int64_t M, int64_t K,
              int64_t N) {
    // Where rows of a take turns, the next ones find b in the first cache.
    const int64_t width = M > 8 ? COLUMNS : N;
    auto rows = [&](auto unroll, int64_t k, int64_t far, int64_t next) PRISM_BODY {
        constexpr int U = decltype(unroll)::n;
        for (int64_t n = 0; n < N; n += width) {
            int64_t soon = next;
            for (int64_t m = 0; m < M;) {
                auto some = [&](auto count) PRISM_BODY {
                    constexpr int R = decltype(count)::n;
                    if constexpr (R <= MOST)
                        mul_pass<R, U>(c + m * cm + n, cm, a + m * am + k * ak, am, ak, b + k * bk + n, bk, far,
                                       v_mini(width, N - n), soon);
                    m += R;
                };
                if (M - m >= 8) some(Count<8>{});
                else if (M - m >= 4) some(Count<4>{});
                else if (M - m >= 2) some(Count<2>{});
                else some(Count<1>{});
                soon = 0;
            }
        }
    };
    constexpr int U = MOST > 1 ? TERMS : TERMS / 2;
    // Long rows are streams by themselves; of short ones, some that are far apart are.
    const int64_t run = v_run(U), far = K / U * run, row = N * (int64_t)sizeof(B);
    const int64_t next = v_maxi(run, SOON / STREAMS / row) * bk, after = v_maxi(1, SOON / row) * bk;
    if (row < PAGE)
        for (int64_t k = 0; k < far; k += run) rows(Count<U>{}, k, far, next);
    else
        for (int64_t k = 0; k + U <= K; k += U) rows(Count<U>{}, k, run, v_maxi(U * bk, after));
    for (int64_t k = K / U * U; k < K; ++k) rows(Count<1>{}, k, 1, after);
}

// The sums of VL vectors as one vector: each round folds the groups of W lanes of two vectors and puts them side by side.
constexpr int v_folded(int i, int w) { return i / w * w + i % (w / 2) + (i / (w / 2) % 2 ? (int)VL : 0); }
template <int W, int... I> PRISM_INLINE vf v_fold(vf a, vf b, std::integer_sequence<int, I...>) {
    return PRISM_SHUFFLE(a, b, (v_folded(I, W))...) + PRISM_SHUFFLE(a, b, (v_folded(I, W) + W / 2)...);
}
template <int W = VL> PRISM_INLINE vf v_sums(vf* x) {
    if constexpr (W == 1) {
        return x[0];
    } else {
#pragma GCC unroll 8
        for (int i = 0; i < W / 2; ++i) x[i] = v_fold<W>(x[i], x[i + W / 2], std::make_integer_sequence<int, VL>{});
        return v_sums<W / 2>(x);
    }
}

// M rows at once, b's columns contiguous: dot products, as many columns at a time as give VL of them.
template <int M, class B>
void mul_dots(float* __restrict c, int64_t cm, const float* __restrict a, int64_t am, const B* __restrict b, int64_t bn,
              int64_t K, int64_t N) {
    const int64_t ahead = v_maxi(VL / STREAMS, SOON / STREAMS / (K * (int64_t)sizeof(B)));
    constexpr int TOGETHER = VL / M < 4 ? (VL / M < 2 ? 1 : 2) : (VL / M < 8 ? 4 : (VL / M < 16 ? 8 : 16));
    auto columns = [&](auto count, int64_t n, int64_t far) PRISM_BODY {
        constexpr int C = decltype(count)::n, RUN = C < STREAMS ? C : C / STREAMS;
        vf s[VL < M * C ? M * C : VL] = {};
        auto step = [&](auto full, int64_t k, int64_t lanes) PRISM_BODY {
            vf x[M];
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) x[m] = v_ld(full, a + m * am + k, lanes);
#pragma GCC unroll 16
            for (int j = 0; j < C; ++j) {
                const B* column = b + (n + j / RUN * far + j % RUN) * bn + k;
                vf w = v_ld(full, column, lanes);
                v_ask(column + ahead * bn);
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m) s[m * C + j] += x[m] * w;
            }
        };
        int64_t k = 0;
        for (; k + VL <= K; k += VL) step(Whole{}, k, VL);
        if (k < K) step(Part{}, k, K - k);
        if constexpr (C > 1) {
            vf sums = v_sums(s);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m)
#pragma GCC unroll 16
                for (int j = 0; j < C; ++j) c[m * cm + n + j / RUN * far + j % RUN] += sums[m * C + j];
        } else {
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) c[m * cm + n] += v_across(Sum{}, s[m]);
        }
    };
    constexpr int64_t STEP = TOGETHER < STREAMS ? TOGETHER : TOGETHER / STREAMS;
    const int64_t far = N / TOGETHER * STEP;
    int64_t n = 0;
    for (; n < far; n += STEP) columns(Count<TOGETHER>{}, n, far);
    for (n = far * (TOGETHER / STEP); n < N; ++n) columns(Count<1>{}, n, 0);
}

// Two vectors lane by lane in turn: the first or the second half of the result.
template <int HALF, int... I> PRISM_INLINE vf v_mix(vf a, vf b, std::integer_sequence<int, I...>) {
    return PRISM_SHUFFLE(a, b, (HALF * (int)VL / 2 + I / 2 + I % 2 * (int)VL)...);
}
// R vectors as the rows of a matrix, transposed, R a power of two up to VL: each round mixes its halves.
template <int R> PRISM_INLINE void v_transpose(vf* rows) {
    constexpr auto lanes = std::make_integer_sequence<int, VL>{};
    for (int round = 1; round < R; round *= 2) {
        vf next[R];
#pragma GCC unroll 8
        for (int i = 0; i < R / 2; ++i) {
            next[2 * i] = v_mix<0>(rows[i], rows[i + R / 2], lanes);
            next[2 * i + 1] = v_mix<1>(rows[i], rows[i + R / 2], lanes);
        }
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) rows[i] = next[i];
    }
}

template <class E, class B>
void pack_b(typename E::type* __restrict to, const B* __restrict b, int64_t bk, int64_t bn, int64_t K, int64_t N);

// What is kept of an operand that is held: its panels; how many places that takes.
template <class E> struct Kept {
    static constexpr int64_t room(int64_t K, int64_t N) { return v_packed_b(N, v_cdiv(K, E::TERMS)); }
    template <class T, class B> static void pack(T* to, const B* b, int64_t bk, int64_t bn, int64_t K, int64_t N) {
        pack_b<E>(to, b, bk, bn, K, N);
    }
    template <class T, class B> static void keep(T* to, const B* b, int64_t bk, int64_t bn, int64_t K, int64_t N) {
        E::pack(to, b, bk, bn, K, N);
    }
    static void mark(Panels&) {}
};
// What a place in a panel holds: one term in float32. Its kin hold a pair in bfloat16 (halves.hpp) or four bytes (bytes.hpp).
struct Single : Kept<Single> {
    typedef float type;
    static constexpr int64_t TERMS = 1, KIND = 1;
    // Places from neighbours along k; from VL neighbours across k, or `left` of them; one place. `k` terms are inside.
    template <class B> static PRISM_INLINE vf along(const B* p) { return v_load(p); }
    template <class B> static PRISM_INLINE vf across(const B* p, int64_t, int64_t, int64_t left) {
        return left >= VL ? v_load(p) : v_ld(Part{}, p, left);
    }
    template <class B> static PRISM_INLINE float one(const B* p, int64_t, int64_t) { return v_one(p); }
    static PRISM_INLINE vf add(vf sum, float x, vf w) { return sum + x * w; }
};

// b as panels of PANEL columns, place by place along k; what is outside is 0.
template <class E, class B>
void pack_b(typename E::type* __restrict to, const B* __restrict b, int64_t bk, int64_t bn, int64_t K, int64_t N) {
    constexpr int64_t T = E::TERMS;
    const int64_t depth = v_cdiv(K, T);
    float* p = (float*)to;
    if (bn == 1) {
        // Some panels at a time: of all that long rows are cut into, the first cache would hold few.
        constexpr int64_t WIDTH = 4 * PANEL;
        const int64_t soon = v_cdiv(SOON, T * v_mini(N, WIDTH) * (int64_t)sizeof(B)) * T * bk;
        for (int64_t first = 0; first < N; first += WIDTH)
            for (int64_t k = 0; k < depth; ++k) {
                const B* row = b + T * k * bk;
                for (int64_t n = first; n < v_mini(N, first + WIDTH); n += VL) {
                    for (int64_t t = 0; t < T; ++t)
                        for (int64_t j = 0; j < VL; j += LINE / (int64_t)sizeof(B)) v_ask(row + t * bk + soon + n + j);
                    v_store(p + n / PANEL * PANEL * depth + k * PANEL + n % PANEL,
                            E::across(row + n, bk, K - T * k, N - n));
                }
            }
        for (int64_t k = 0; k < depth; ++k)
            for (int64_t n = v_cdiv(N, VL) * VL; n % PANEL; n += VL)
                v_store(p + n / PANEL * PANEL * depth + k * PANEL + n % PANEL, vf{});
        return;
    }
    for (int64_t n = 0; n < N; n += PANEL) {
        typename E::type* panel = to + n * depth;
        for (int64_t j = 0; j < PANEL; j += VL) {
            int64_t k = 0;
            if (bk == 1 && n + j + VL <= N)
                for (; T * (k + VL) <= K; k += VL) {
                    vf rows[VL];
#pragma GCC unroll 16
                    for (int64_t i = 0; i < VL; ++i) {
                        rows[i] = E::along(b + (n + j + i) * bn + T * k);
                        v_ask(b + (n + j + i + VL) * bn + T * k);
                    }
                    v_transpose<VL>(rows);
#pragma GCC unroll 16
                    for (int64_t i = 0; i < VL; ++i) v_store((float*)panel + (k + i) * PANEL + j, rows[i]);
                }
            for (int64_t i = 0; i < VL && k < depth; ++i) {
                const B* column = b + (n + j + i) * bn;
                for (int64_t l = k; l < depth; ++l)
                    panel[l * PANEL + j + i] = n + j + i < N ? E::one(column + T * l * bk, bk, K - T * l) : 0;
            }
        }
    }
}
// a as panels of MR rows, place by place along k; what is outside is 0.
template <class E, class A>
void pack_a(typename E::type* __restrict p, const A* __restrict a, int64_t am, int64_t ak, int64_t M, int64_t K) {
    constexpr int64_t T = E::TERMS;
    const int64_t depth = v_cdiv(K, T);
    for (int64_t m = 0; m < M; m += MR) {
        typename E::type* panel = p + m * depth;
        int64_t k = 0;
        if constexpr ((MR & (MR - 1)) == 0 && MR <= VL)
            if (ak == 1 && m + MR <= M)
                for (; T * (k + VL) <= K; k += VL) {
                    vf rows[MR];
#pragma GCC unroll 16
                    for (int64_t i = 0; i < MR; ++i) {
                        rows[i] = E::along(a + (m + i) * am + T * k);
                        v_ask(a + (m + i + MR) * am + T * k);
                    }
                    v_transpose<MR>(rows);
#pragma GCC unroll 16
                    for (int64_t i = 0; i < MR; ++i) v_store((float*)panel + k * MR + i * VL, rows[i]);
                }
        if constexpr (T == 1)
            if (am == 1 && m + MR <= M)
                for (; k < depth; ++k) memcpy(panel + k * MR, a + m + k * ak, MR * sizeof(float));
        for (int64_t i = 0; i < MR; ++i)
            for (int64_t l = k; l < depth; ++l)
                panel[l * MR + i] = m + i < M ? E::one(a + (m + i) * am + T * l * ak, ak, K - T * l) : 0;
    }
}

// R rows times a panel of columns. Terms of a row of `a` are neighbours, `am` from row to row; where APART is not, `a` is a
// panel of MR rows itself.
template <class E, int R, bool APART>
PRISM_ALONE void mul_block(bool fresh, float* __restrict c, int64_t cm, const typename E::type* __restrict a, int64_t am,
                           const typename E::type* __restrict pb, int64_t depth) {
    vf s[R][NR] = {};
    for (int64_t k = 0; k < depth; ++k, a += APART ? 1 : MR, pb += PANEL) {
        vf w[NR];
#pragma GCC unroll 8
        for (int j = 0; j < NR; ++j) w[j] = v_load((const float*)pb + j * VL);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
            for (int j = 0; j < NR; ++j) s[i][j] = E::add(s[i][j], a[APART ? i * am : i], w[j]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < NR; ++j) {
            float* to = c + i * cm + j * VL;
            v_store(to, fresh ? s[i][j] : v_load(to) + s[i][j]);
        }
}

// What a block at an edge holds of rows and columns that are inside.
PRISM_ALONE inline void mul_edge(bool fresh, float* __restrict c, int64_t cm, const float* __restrict edge, int64_t rows,
                                 int64_t columns) {
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < columns; ++j) c[i * cm + j] = (fresh ? 0.0f : c[i * cm + j]) + edge[i * PANEL + j];
}

// All rows of `a`, as they are stored or as panels, times panels of columns, of which N are inside.
template <class E, bool APART>
void mul_panels(bool fresh, float* __restrict c, int64_t cm, const typename E::type* __restrict a, int64_t am,
                const typename E::type* __restrict pb, int64_t M, int64_t K, int64_t N) {
    const int64_t depth = v_cdiv(K, E::TERMS);
    // Some of the depth at a time, so that a panel of b stays in the first cache and long sums stay precise.
    constexpr int64_t STEP = BLOCK / E::TERMS;
    for (int64_t k = 0; k < depth; k += STEP) {
        const bool set = fresh && k == 0;
        const int64_t count = v_mini(STEP, depth - k);
        for (int64_t first = 0; first < M; first += TALL)
            for (int64_t n = 0; n < N; n += PANEL) {
                const int64_t stop = v_mini(M, first + TALL);
                const auto* w = pb + n * depth + k * PANEL;
                auto rows = [&](auto many, int64_t m, int64_t inside) PRISM_BODY {
                    constexpr int R = decltype(many)::n;
                    const auto* x = APART ? a + m * am + k : a + m * depth + k * MR;
                    float* to = c + m * cm + n;
                    if (inside == R && n + PANEL <= N) return mul_block<E, R, APART>(set, to, cm, x, am, w, count);
                    float edge[R * PANEL];
                    mul_block<E, R, APART>(true, edge, PANEL, x, am, w, count);
                    mul_edge(set, to, cm, edge, inside, v_mini(PANEL, N - n));
                };
                int64_t m = first;
                for (; m + MR <= stop; m += MR) rows(Count<(int)MR>{}, m, MR);
                if constexpr (APART) {
                    for (; m + 2 <= stop; m += 2) rows(Count<2>{}, m, 2);
                    if (m < stop) rows(Count<1>{}, m, 1);
                } else if (m < stop) {
                    rows(Count<(int)MR>{}, m, stop - m);
                }
            }
    }
}

// The panels of an operand that is held, which are made where they are not there yet; null for any other.
template <class E, class B>
const typename E::type* v_kept(const B* b, int64_t bk, int64_t bn, int64_t K, int64_t N, const E& how = {}) {
    struct Seen {
        int64_t changes;
        Panels panels;
    };
    constexpr uint64_t SEEN = 256;
    static thread_local Seen seen[SEEN];
    const int64_t changes = __atomic_load_n(&held.changes, __ATOMIC_ACQUIRE);
    if (!changes) return nullptr;
    Panels asked = {b, bk, bn, K, N, E::KIND};
    how.mark(asked);
    const uint64_t hash = asked.hash();
    Seen& own = seen[hash % SEEN];
    if (own.changes == changes && own.panels.is(asked)) return (const typename E::type*)own.panels.at;
    {
        Turn turn;
        const Held::Range* r = held.ranges;
        while (r && ((const char*)b < r->first || (const char*)b >= r->last)) r = r->next;
        if (r) {
            Panels*& bucket = held.buckets[hash % Held::BUCKETS];
            Panels* found = bucket;
            while (found && !found->is(asked)) found = found->next;
            if (!found) {
                found = (Panels*)malloc(sizeof(Panels));
                void* at = found ? v_keep(how.room(K, N) * 4) : nullptr;
                if (!at) {
                    free(found);
                    return nullptr;
                }
                how.keep((typename E::type*)at, b, bk, bn, K, N);
                *found = asked;
                found->at = at;
                found->next = bucket;
                bucket = found;
            }
            asked.at = found->at;
        }
    }
    own = {changes, asked};
    return (const typename E::type*)asked.at;
}

// Those of any operand: in pb where it is not held, and as they are where that has them.
template <class E, class B>
const typename E::type* v_panels(const B* b, int64_t bk, int64_t bn, int64_t K, int64_t N, typename E::type* pb, Panels& last,
                                 int64_t uses, const E& how = {}) {
    if (const typename E::type* kept = v_kept<E>(b, bk, bn, K, N, how)) return kept;
    Panels asked = {b, bk, bn, K, N, E::KIND, pb};
    how.mark(asked);
    if (uses && last.at == pb && last.is(asked)) return pb;
    how.pack(pb, b, bk, bn, K, N);
    last = uses ? asked : Panels{};
    return pb;
}

template <class E, class B, class A>
void mul_packed(bool fresh, float* __restrict c, int64_t cm, const A* __restrict a, int64_t am, int64_t ak,
                const B* __restrict b, int64_t bk, int64_t bn, int64_t M, int64_t K, int64_t N,
                typename E::type* __restrict pa, typename E::type* __restrict pb, Panels& last, int64_t uses) {
    const typename E::type* panels = v_panels<E>(b, bk, bn, K, N, pb, last, uses);
    if constexpr (E::TERMS == 1)
        if (ak == 1) return mul_panels<E, true>(fresh, c, cm, a, am, panels, M, K, N);
    pack_a<E>(pa, a, am, ak, M, K);
    mul_panels<E, false>(fresh, c, cm, pa, 0, panels, M, K, N);
}

// The product, whatever its shape, by vectors.
template <class B>
void mul_vectors(bool fresh, float* c, int64_t cm, const float* a, int64_t am, int64_t ak, const B* b, int64_t bk,
                 int64_t bn, int64_t M, int64_t K, int64_t N, float* pa, float* pb, Panels& last, int64_t uses) {
    const bool streams = bn == 1 && M <= STREAMED, dots = bk == 1 && ak == 1 && M <= FEW;
    const bool kept = dots && M > 1 && K <= SHORT && N >= PANEL && v_kept<Single>(b, bk, bn, K, N);
    if (!streams && (!dots || kept)) 
        return mul_packed<Single>(fresh, c, cm, a, am, ak, b, bk, bn, M, K, N, pa, pb, last, uses);
    if (fresh)
        for (int64_t m = 0; m < M; ++m) v_fill(c + m * cm, N, 0.0f);
    if (streams) {
        auto* rows = M == 1 ? mul_rows<1, B> : mul_rows<8, B>;  // of more, so many are taken in turn
        if (K <= BLOCK) return rows(c, cm, a, am, ak, b, bk, M, K, N);
        last = {};
        for (int64_t k = 0; k < K; k += BLOCK) {
            v_fill(pb, M * N, 0.0f);
            rows(pb, N, a + k * ak, am, ak, b + k * bk, bk, M, v_mini(BLOCK, K - k), N);
            for (int64_t m = 0; m < M; ++m)
                for (int64_t n = 0; n < N; ++n) c[m * cm + n] += pb[m * N + n];
        }
        return;
    }
    if (M == 1) return mul_dots<1>(c, cm, a, am, b, bn, K, N);
    if (M == 2) return mul_dots<2>(c, cm, a, am, b, bn, K, N);
    if (M == 3) return mul_dots<3>(c, cm, a, am, b, bn, K, N);
    mul_dots<4>(c, cm, a, am, b, bn, K, N);
}
}  // namespace prism
