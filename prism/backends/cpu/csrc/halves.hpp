// Products of bfloat16 values, two terms in one instruction where the processor has it (AVX512-BF16): sums stay float32.
namespace prism __attribute__((visibility("hidden"))) {
#if PRISM_PAIRS
// Two bfloat16 terms, neighbours along k, the first one in the low half.
struct Pair : Kept<Pair> {
    typedef uint32_t type;
    static constexpr int64_t TERMS = 2, KIND = 2;
    static PRISM_INLINE vf along(const bf16* p) { return v_load((const float*)p); }
    static PRISM_INLINE vf along(const float* p) {
        vf r, low = v_load(p), high = v_load(p + VL);
        __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(r) : "v"(low), "v"(high));
        return r;
    }
    template <class B> static PRISM_INLINE vf across(const B* p, int64_t bk, int64_t k, int64_t left) {
        return (vf)(half(p, left) | (k > 1 ? half(p + bk, left) << 16 : vi{}));
    }
    template <class B> static PRISM_INLINE uint32_t one(const B* p, int64_t bk, int64_t k) {
        return bits(p) | (k > 1 ? bits(p + bk) << 16 : 0);
    }
    // sum += x.even * w.even + x.odd * w.odd in every lane.
    static PRISM_INLINE vf add(vf sum, uint32_t x, vf w) {
        vi all = v_all((int32_t)x);
        __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(all), "v"(w));
        return sum;
    }

  private:
    static PRISM_INLINE vi half(const bf16* p, int64_t left) {
        if (left >= VL) return __builtin_convertvector(*(const u_vh*)p, vi);
        return __builtin_convertvector(v_narrow(v_ld(Part{}, p, left), (bf16*)0), vi);
    }
    static PRISM_INLINE vi half(const float* p, int64_t left) {
        return __builtin_convertvector(v_narrow(left >= VL ? v_load(p) : v_ld(Part{}, p, left), (bf16*)0), vi);
    }
    static PRISM_INLINE uint32_t bits(const bf16* p) { return p->bits; }
    static PRISM_INLINE uint32_t bits(const float* p) { return v_narrow(v_all(*p), (bf16*)0)[0]; }
};
#endif
#if PRISM_PAIR_TILES
// `mul_packed` of pairs by tiles: two by two of them at a time, over the depth of a panel that the first cache holds. Tiles
// of `a` that are stored as pairs are taken where they lie.
template <class B, class A>
void mul_tiles(bool fresh, float* __restrict c, int64_t cm, const A* __restrict a, int64_t am, int64_t ak,
               const B* __restrict b, int64_t bk, int64_t bn, int64_t M, int64_t K, int64_t N, uint32_t* __restrict pa,
               uint32_t* __restrict pb, Panels& last, int64_t uses) {
    const uint32_t* panels = v_panels<Pair>(b, bk, bn, K, N, pb, last, uses);
    const int64_t depth = v_cdiv(K, 2), wide = v_cdiv(depth, TILE) * TILE;
    const bool stored = sizeof(A) == 2 && ak == 1 && K % (2 * TILE) == 0;
    const int64_t packed = stored ? M / TILE * TILE : 0;  // the first row of `pa`
    for (int64_t m = packed; m < v_cdiv(M, TILE) * TILE; ++m) {
        uint32_t* row = pa + (m - packed) * wide;
        int64_t k = 0;
        if (m < M) {
            if (ak == 1)
                for (; 2 * (k + VL) <= K; k += VL) v_store((float*)row + k, Pair::along(a + m * am + 2 * k));
            for (; k < depth; ++k) row[k] = Pair::one(a + m * am + 2 * k * ak, ak, K - 2 * k);
        }
        for (; k < wide; ++k) row[k] = 0;
    }
    const auto tile = [&](int64_t m) PRISM_BODY {
        return m < packed ? (const char*)(a + m * am) : (const char*)(pa + (m - packed) * wide);
    };
    const auto row = [&](int64_t m) PRISM_BODY { return m < packed ? 2 * am : 4 * wide; };
    uint32_t tail[TILE * PANEL];
    v_by_tiles(fresh, c, cm, M, depth, N, [&](int64_t k, int64_t end, int64_t n) PRISM_BODY {
        const uint32_t* w = panels + n * depth;
        const int64_t whole = end - (end - k) % TILE;
        if (whole < end) v_last_tile(tail, w + whole * PANEL, end - whole);
        return [=](int64_t m, bool two) PRISM_BODY {
            const char *upper = tile(m), *lower = tile(m + TILE);
            const int64_t upper_row = row(m), lower_row = row(m + TILE);
            for (int64_t l = k; l < end; l += TILE) {
                const uint32_t* y = l < whole ? w + l * PANEL : tail;
                PRISM_TILE_LOAD(6, y, PANEL);
                PRISM_TILE_LOAD(7, y + TILE, PANEL);
                PRISM_TILE_ROWS(4, upper + 4 * l, upper_row);
                if (two) PRISM_TILE_ROWS(5, lower + 4 * l, lower_row);
                PRISM_TILE_PAIRS(two);
            }
        };
    });
}
#endif
template <class B, class A>
void multiply_halves(bool fresh, float* c, int64_t cm, const A* a, int64_t am, int64_t ak, const B* b, int64_t bk,
                     int64_t bn, int64_t M, int64_t K, int64_t N, float* pa, float* pb, Panels& last, int64_t uses) {
#if PRISM_PAIRS
    if (M > (bn == 1 ? MR : FEW)) {
        auto *x = (uint32_t*)pa, *y = (uint32_t*)pb;
#if PRISM_PAIR_TILES
        if (v_tiles())
            return mul_tiles(fresh, c, cm, a, am, ak, b, bk, bn, M, K, N, x, y, last, uses);
#endif
        return mul_packed<Pair>(fresh, c, cm, a, am, ak, b, bk, bn, M, K, N, x, y, last, uses);
    }
#endif
    if constexpr (sizeof(A) == sizeof(float)) {
        mul_vectors(fresh, c, cm, a, am, ak, b, bk, bn, M, K, N, pa, pb, last, uses);
    } else {  // rows of neighbours are taken as they are, so there is room for all of them
        for (int64_t m = 0; m < M; ++m) {
            const A* row = a + m * am;
            int64_t k = 0;
            if (ak == 1)
                for (; k + VL <= K; k += VL) v_store(pa + m * K + k, v_ld(Whole{}, row + k, VL));
            for (; k < K; ++k) pa[m * K + k] = v_one(row + k * ak);
        }
        mul_vectors(fresh, c, cm, pa, K, 1, b, bk, bn, M, K, N, (float*)nullptr, pb, last, uses);
    }
}
}  // namespace prism
