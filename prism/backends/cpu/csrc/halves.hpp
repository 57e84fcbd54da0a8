// Products of bfloat16 values, two terms in one instruction where the processor has it (AVX512-BF16): sums stay float32.
namespace prism {
#if PRISM_PAIRS
// c += a.even * b.even + a.odd * b.odd in every lane.
PRISM_INLINE vf v_dot2(vf c, vi a, vi b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
}
// The bits of VL neighbours as bfloat16, of fewer of them, of one.
PRISM_INLINE vi v_bits16(const bf16* p) { return __builtin_convertvector(*(const u_vh*)p, vi); }
PRISM_INLINE vi v_bits16(const float* p) { return __builtin_convertvector(v_narrow(v_load(p), (bf16*)0), vi); }
template <class B> PRISM_INLINE vi v_part16(const B* p, int64_t n) {
    return __builtin_convertvector(v_narrow(n >= VL ? v_load(p) : v_ld(Part{}, p, n), (bf16*)0), vi);
}
PRISM_INLINE uint32_t v_one16(const bf16* p) { return p->bits; }
PRISM_INLINE uint32_t v_one16(const float* p) { return v_narrow(v_all(*p), (bf16*)0)[0]; }
// VL pairs of one row.
PRISM_INLINE vf v_pairs(const bf16* p) { return v_load((const float*)p); }
PRISM_INLINE vf v_pairs(const float* p) {
    vf r, low = v_load(p), high = v_load(p + VL);
    __asm__("vcvtne2ps2bf16 %1, %2, %0" : "=v"(r) : "v"(low), "v"(high));
    return r;
}

// b as panels of PANEL columns, pair by pair; what is outside is 0.
template <class B>
void pack_pairs_b(uint32_t* __restrict p, const B* __restrict b, int64_t bk, int64_t bn, int64_t K, int64_t N) {
    const int64_t pairs = (K + 1) / 2;
    if (bn == 1) {
        const int64_t soon = v_cdiv(SOON, 2 * N * (int64_t)sizeof(B)) * 2 * bk;
        for (int64_t k = 0; k < pairs; ++k) {
            const B* row = b + 2 * k * bk;
            int32_t* to = (int32_t*)p + k * PANEL;
            const bool two = 2 * k + 1 < K;
            for (int64_t n = 0; n < N; n += VL) {
                const int64_t left = N - n, place = n / PANEL * PANEL * pairs + n % PANEL;
                v_ask(row + soon + n);
                v_ask(row + bk + soon + n);
                if (two && left >= VL) v_store(to + place, v_bits16(row + n) | v_bits16(row + bk + n) << 16);
                else v_store(to + place, v_part16(row + n, left) | (two ? v_part16(row + bk + n, left) << 16 : vi{}));
            }
            for (int64_t n = v_cdiv(N, VL) * VL; n % PANEL; n += VL) v_store(to + n / PANEL * PANEL * pairs + n % PANEL, vi{});
        }
        return;
    }
    for (int64_t n = 0; n < N; n += PANEL) {
        uint32_t* panel = p + n * pairs;
        for (int64_t j = 0; j < PANEL; j += VL) {
            int64_t k = 0;
            if (bk == 1 && n + j + VL <= N)
                for (; 2 * (k + VL) <= K; k += VL) {
                    vf rows[VL];
#pragma GCC unroll 16
                    for (int64_t i = 0; i < VL; ++i) rows[i] = v_pairs(b + (n + j + i) * bn + 2 * k);
                    v_transpose<VL>(rows);
#pragma GCC unroll 16
                    for (int64_t i = 0; i < VL; ++i) v_store((float*)panel + (k + i) * PANEL + j, rows[i]);
                }
            for (int64_t i = 0; i < VL && k < pairs; ++i) {
                const B* column = b + (n + j + i) * bn;
                for (int64_t l = k; l < pairs; ++l) {
                    uint32_t pair = 0;
                    if (n + j + i < N) {
                        pair = v_one16(column + 2 * l * bk);
                        if (2 * l + 1 < K) pair |= v_one16(column + (2 * l + 1) * bk) << 16;
                    }
                    panel[l * PANEL + j + i] = pair;
                }
            }
        }
    }
}
// a as panels of MR rows, pair by pair; what is outside is 0.
inline void pack_pairs_a(uint32_t* __restrict p, const float* __restrict a, int64_t am, int64_t ak, int64_t M, int64_t K) {
    const int64_t pairs = (K + 1) / 2;
    for (int64_t m = 0; m < M; m += MR) {
        uint32_t* panel = p + m * pairs;
        int64_t k = 0;
        if (ak == 1 && m + MR <= M)
            for (; 2 * (k + VL) <= K; k += VL) {
                vf rows[MR];
#pragma GCC unroll 16
                for (int64_t i = 0; i < MR; ++i) rows[i] = v_pairs(a + (m + i) * am + 2 * k);
                v_transpose<MR>(rows);
#pragma GCC unroll 16
                for (int64_t i = 0; i < MR; ++i) v_store((float*)panel + k * MR + i * VL, rows[i]);
            }
        for (int64_t i = 0; i < MR; ++i)
            for (int64_t l = k; l < pairs; ++l) {
                uint32_t pair = 0;
                if (m + i < M) {
                    pair = v_one16(a + (m + i) * am + 2 * l * ak);
                    if (2 * l + 1 < K) pair |= v_one16(a + (m + i) * am + (2 * l + 1) * ak) << 16;
                }
                panel[l * MR + i] = pair;
            }
    }
}
PRISM_INLINE void mul_pairs_block(float* __restrict c, int64_t cm, const uint32_t* __restrict pa,
                                  const uint32_t* __restrict pb, int64_t pairs) {
    vf s[MR][NR] = {};
    for (int64_t k = 0; k < pairs; ++k, pa += MR, pb += PANEL) {
        vi w[NR];
#pragma GCC unroll 8
        for (int j = 0; j < NR; ++j) w[j] = v_load((const int32_t*)pb + j * VL);
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i) {
            vi x = v_all((int32_t)pa[i]);
#pragma GCC unroll 8
            for (int j = 0; j < NR; ++j) s[i][j] = v_dot2(s[i][j], x, w[j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < NR; ++j) v_store(c + i * cm + j * VL, v_load(c + i * cm + j * VL) + s[i][j]);
}
template <class B>
void mul_pairs(float* __restrict c, int64_t cm, const float* __restrict a, int64_t am, int64_t ak, const B* __restrict b,
               int64_t bk, int64_t bn, int64_t M, int64_t K, int64_t N, uint32_t* __restrict pa, uint32_t* __restrict pb) {
    const int64_t pairs = (K + 1) / 2;
    pack_pairs_a(pa, a, am, ak, M, K);
    pack_pairs_b(pb, b, bk, bn, K, N);
    mul_panels(c, cm, pa, pb, M, pairs, N, BLOCK / 2, [](float* to, int64_t m, const uint32_t* x, const uint32_t* w, int64_t k)
                   PRISM_BODY { mul_pairs_block(to, m, x, w, k); });
}
#endif
// `multiply` of two operands that may be rounded to bfloat16.
template <int64_t MOST, class B>
void multiply_halves(float* c, int64_t cm, const float* a, int64_t am, int64_t ak, const B* b, int64_t bk, int64_t bn,
                     int64_t M, int64_t K, int64_t N, float* pa, float* pb) {
#if PRISM_PAIRS
    if (M > (bn == 1 ? MR : FEW)) return mul_pairs(c, cm, a, am, ak, b, bk, bn, M, K, N, (uint32_t*)pa, (uint32_t*)pb);
#endif
    multiply<MOST>(c, cm, a, am, ak, b, bk, bn, M, K, N, pa, pb);
}
}  // namespace prism
