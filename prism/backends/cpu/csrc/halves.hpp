// Products of bfloat16 values, two terms in one instruction where the processor has it (AVX512-BF16): sums stay float32.
namespace prism __attribute__((visibility("hidden"))) {
#if PRISM_PAIRS
// Two bfloat16 terms, neighbours along k, the first one in the low half.
struct Pair {
    typedef uint32_t type;
    static constexpr int64_t TERMS = 2;
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
template <class B>
void apart_multiply_halves(bool fresh, float* c, int64_t cm, const float* a, int64_t am, int64_t ak, const B* b,
                           int64_t bk, int64_t bn, int64_t M, int64_t K, int64_t N, float* pa, float* pb);
#ifdef PRISM_APART
template <int64_t MOST, bool FRESH, class B>
PRISM_INLINE void multiply_halves(float* c, int64_t cm, const float* a, int64_t am, int64_t ak, const B* b, int64_t bk,
                                  int64_t bn, int64_t M, int64_t K, int64_t N, float* pa, float* pb) {
    apart_multiply_halves(FRESH, c, cm, a, am, ak, b, bk, bn, M, K, N, pa, pb);
}
#else
// `multiply` of two operands that may be rounded to bfloat16.
template <int64_t MOST, bool FRESH, class B>
void multiply_halves(float* c, int64_t cm, const float* a, int64_t am, int64_t ak, const B* b, int64_t bk, int64_t bn,
                     int64_t M, int64_t K, int64_t N, float* pa, float* pb) {
#if PRISM_PAIRS
    if (M > (bn == 1 ? MR : FEW))
        return mul_packed<Pair, FRESH>(c, cm, a, am, ak, b, bk, bn, M, K, N, (uint32_t*)pa, (uint32_t*)pb);
#endif
    multiply<MOST, FRESH>(c, cm, a, am, ak, b, bk, bn, M, K, N, pa, pb);
}
#endif
}  // namespace prism
