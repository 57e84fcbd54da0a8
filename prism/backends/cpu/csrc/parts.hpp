// Products of float32 and float16 values by tiles of bfloat16 (AMX). A float32 value is the sum of three bfloat16 values, of
// 8 bits each, and a float16 one of two; of the products of parts, those are left out that are below 2^-24 of the whole.
namespace prism __attribute__((visibility("hidden"))) {
#if PRISM_PAIR_TILES
constexpr int64_t SQUARE = TILE * TILE;  // places of a tile
constexpr int64_t DEEP = 2 * TILE;       // terms of a tile
// The largest magnitudes, as bits, that rows and columns may have: below 2^-45 products of parts may be less than the least
// normal number, which tiles take for 0, and from 2^127 on a first part may be infinite.
constexpr int32_t LEAST = (127 - 45) << 23, MOST = 254 << 23;

// Whether parts do for products of some rows, of which rows or terms are neighbours, and how many each value has.
struct Looked {
    bool fits = true;
    int parts = 2;
};
template <class T> PRISM_ALONE Looked v_look(const T* x, int64_t row, int64_t term, int64_t rows, int64_t terms) {
    Looked found;
    vi any = {};
    auto largest = [&](const T* p, int64_t step, int64_t count, int64_t left) PRISM_BODY {
        vi most = {};
        for (int64_t i = 0; i < count; ++i, p += step) {
            const int64_t lanes = step == VL ? left - i * VL : left;
            const vi bits = v_bits(lanes >= VL ? v_load(p) : v_ld(Part{}, p, lanes)), size = bits & 0x7fffffff;
            any |= bits;
            most = v_sel(size > most, size, most);
        }
        return most;
    };
    auto fits = [&](int32_t most) PRISM_BODY { found.fits &= most == 0 || (most >= LEAST && most < MOST); };
    if (term == 1) {
        for (int64_t r = 0; r < rows; ++r) {
            const vi lanes = largest(x + r * row, VL, v_cdiv(terms, VL), terms);
            int32_t most = 0;
            for (int i = 0; i < VL; ++i) most = lanes[i] > most ? lanes[i] : most;
            fits(most);
        }
    } else {
        for (int64_t r = 0; r < rows; r += VL) {
            const vi lanes = largest(x + r, term, terms, rows - r);
            for (int i = 0; i < VL; ++i) fits(lanes[i]);
        }
        found.fits &= row == 1;
    }
    for (int i = 0; i < VL; ++i)
        if (any[i] & 255) found.parts = PARTS;
    return found;
}

// Tiles of all parts, 16 rows and 32 terms each, side by side: along the rows of the first factor, and, TURNED, of the
// second one's columns, pairs of terms first. What is outside is 0.
template <bool TURNED, class T>
PRISM_ALONE void pack_parts(uint32_t* __restrict to, const T* __restrict x, int64_t row, int64_t term, int64_t rows,
                            int64_t terms, int parts) {
    for (int64_t r = 0; r < rows; r += TILE)
        for (int64_t k = 0; k < terms; k += DEEP, to += parts * SQUARE) {
            const int64_t wide = v_mini(TILE, rows - r), deep = v_mini(DEEP, terms - k);
            const T* p = x + r * row + k * term;
            int64_t next = row, after = term;
            T edge[TILE * DEEP];
            if (wide < TILE || deep < DEEP) {
                memset((void*)edge, 0, sizeof(edge));
                for (int64_t i = 0; i < wide; ++i)
                    for (int64_t l = 0; l < deep; ++l) edge[i * DEEP + l] = p[i * row + l * term];
                p = edge;
                next = DEEP;
                after = 1;
            }
            // Vectors of a row's first and last terms, or of the two terms of a pair.
            auto split = [&](auto along, int64_t i, vf first, vf last) PRISM_BODY {
                for (int part = 0; part < parts; ++part) {
                    const vf one = v_float((v_bits(first) + 0x8000) & (int32_t)0xffff0000);
                    const vf other = v_float((v_bits(last) + 0x8000) & (int32_t)0xffff0000);
                    first -= one;
                    last -= other;
                    vf both;
                    if constexpr (along.all) __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(both) : "v"(one), "v"(other));
                    else both = v_float((vi)((vu)v_bits(one) >> 16) | v_bits(other));
                    v_store((float*)to + part * SQUARE + i * TILE, both);
                }
            };
            if (after == 1)
                for (int64_t i = 0; i < TILE; ++i, p += next) {
                    v_ask(p + TILE * next);
                    split(Whole{}, i, v_load(p), v_load(p + TILE));
                }
            else
                for (int64_t i = 0; i < TILE; ++i, p += 2 * after) split(Part{}, i, v_load(p), v_load(p + after));
            if ((after == 1) == TURNED)
                for (int part = 0; part < parts; ++part) {
                    vf tile[TILE];
#pragma GCC unroll 16
                    for (int64_t i = 0; i < TILE; ++i) tile[i] = v_load((float*)to + part * SQUARE + i * TILE);
                    v_transpose<TILE>(tile);
#pragma GCC unroll 16
                    for (int64_t i = 0; i < TILE; ++i) v_store((float*)to + part * SQUARE + i * TILE, tile[i]);
                }
        }
}

// Adds the products of 32 terms of all parts to two by two tiles, or one by two, the smallest first. Of the first factor
// parts are `part_a` apart, and the second tile is `side_a` behind the first; the same of the second factor.
PRISM_INLINE void v_add_parts(const uint32_t* x, int64_t part_a, int64_t side_a, int parts_a, const uint32_t* y,
                              int64_t part_b, int64_t side_b, int parts_b, bool two, uint32_t* spare) {
    const auto first = [&](auto n) PRISM_BODY {
        const uint32_t* at = x + decltype(n)::n * part_a;
        PRISM_TILE_LOAD(4, at, TILE);
        if (two) PRISM_TILE_LOAD(5, at + side_a, TILE);
    };
    const auto second = [&](auto n) PRISM_BODY {
        const uint32_t* at = y + decltype(n)::n * part_b;
        PRISM_TILE_LOAD(6, at, TILE);
        PRISM_TILE_LOAD(7, at + side_b, TILE);
    };
    second(Count<0>{});
    if (parts_a == PARTS) {
        first(Count<2>{});
        PRISM_TILE_PAIRS(two);
    }
    if (parts_a > 1) {
        first(Count<1>{});
        PRISM_TILE_PAIRS(two);
        second(Count<1>{});
        PRISM_TILE_PAIRS(two);
    }
    first(Count<0>{});
    PRISM_TILE_PAIRS(two);
    if (parts_b == PARTS) {
        second(Count<2>{});
        PRISM_TILE_PAIRS(two);
    }
    if (parts_b > 1) {
        second(Count<0>{});
        PRISM_TILE_PAIRS(two);
    }
    // A tile that is stored after more than some 130 products holds up what comes next by 230 ns, whether it is one of
    // their sums or not; one now and then costs nothing (measured, a Xeon with AMX).
    PRISM_TILE_STORE(6, spare, TILE);
}

// The product of what `pack_parts` made of both factors.
PRISM_ALONE inline void mul_parts(bool fresh, float* __restrict c, int64_t cm, const uint32_t* a, int parts_a,
                                  const uint32_t* b, int parts_b, int64_t M, int64_t K, int64_t N) {
    const int64_t depth = v_cdiv(K, DEEP), row_a = depth * parts_a * SQUARE, row_b = depth * parts_b * SQUARE;
    alignas(64) uint32_t spare[SQUARE];
    v_by_tiles(fresh, c, cm, M, depth * TILE, N, [&](int64_t k, int64_t end, int64_t n) PRISM_BODY {
        return [=, &spare](int64_t m, bool two) PRISM_BODY {
            const uint32_t* x = a + m / TILE * row_a + k / TILE * parts_a * SQUARE;
            const uint32_t* y = b + n / TILE * row_b + k / TILE * parts_b * SQUARE;
            for (int64_t l = k; l < end; l += TILE, x += parts_a * SQUARE, y += parts_b * SQUARE)
                v_add_parts(x, SQUARE, row_a, parts_a, y, SQUARE, row_b, parts_b, two, spare);
        };
    });
}

// What a second factor is packed into: how many parts it has, 0 where they do not do, and their tiles.
struct Parts : Kept<Parts> {
    typedef uint32_t type;
    static constexpr int64_t KIND = 6;
    static constexpr int64_t room(int64_t K, int64_t N) { return v_room_b(N, K); }
    template <class B> static void pack(uint32_t* to, const B* b, int64_t bk, int64_t bn, int64_t K, int64_t N) {
        const Looked found = v_look(b, bn, bk, N, K);
        *to = found.fits ? found.parts : 0;
        if (found.fits) pack_parts<true>(to + PARTS_AT, b, bn, bk, N, K, found.parts);
    }
};

// c by parts of a and b, where these do and it is faster; whether it was done.
template <class B>
bool mul_by_parts(bool fresh, float* c, int64_t cm, const float* a, int64_t am, int64_t ak, const B* b, int64_t bk,
                  int64_t bn, int64_t M, int64_t K, int64_t N, uint32_t* pa, uint32_t* pb, Panels& last, int64_t uses) {
    if (M < TILE || !v_tiles()) return false;
    // Multiply-adds for each part that is made, below which that takes longer than tiles gain (measured): one that is turned
    // counts half as much again.
    constexpr int64_t WORTH = 20, MOST_PARTS = sizeof(B) == 2 ? 2 : PARTS;
    const auto pays = [&](int64_t packed) PRISM_BODY {
        return 2 * M * N >= WORTH * MOST_PARTS * (2 * M + 3 * packed / v_maxi(uses, 1));
    };
    if (!pays(0) || (!v_kept<Parts>(b, bk, bn, K, N) && !pays(N))) return false;
    const uint32_t* second = v_panels<Parts>(b, bk, bn, K, N, pb, last, uses);
    if (!*second) return false;
    const Looked first = v_look(a, am, ak, M, K);
    if (!first.fits) return false;
    pack_parts<false>(pa, a, am, ak, M, K, first.parts);
    mul_parts(fresh, c, cm, pa, first.parts, second + PARTS_AT, (int)*second, M, K, N);
    return true;
}
#endif

template <class B>
void multiply(bool fresh, float* c, int64_t cm, const float* a, int64_t am, int64_t ak, const B* b, int64_t bk,
              int64_t bn, int64_t M, int64_t K, int64_t N, float* pa, float* pb, Panels& last, int64_t uses) {
#if PRISM_PAIR_TILES
    if (mul_by_parts(fresh, c, cm, a, am, ak, b, bk, bn, M, K, N, (uint32_t*)pa, (uint32_t*)pb, last, uses)) return;
#endif
    mul_vectors(fresh, c, cm, a, am, ak, b, bk, bn, M, K, N, pa, pb, last, uses);
}
}  // namespace prism
