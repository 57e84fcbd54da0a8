// Products as functions of their own: this, after the others, is a source that is compiled once for all tiles.
namespace prism __attribute__((visibility("hidden"))) {
constexpr int64_t ANY = 8;  // rows: of more, some are taken in turn
template <class B>
void apart_multiply(bool fresh, float* c, int64_t cm, const float* a, int64_t am, int64_t ak, const B* b, int64_t bk,
                    int64_t bn, int64_t M, int64_t K, int64_t N, float* pa, float* pb) {
    auto rows = [&](auto most) PRISM_BODY {
        constexpr int64_t MOST = decltype(most)::n;
        if (fresh) multiply<MOST, true>(c, cm, a, am, ak, b, bk, bn, M, K, N, pa, pb);
        else multiply<MOST, false>(c, cm, a, am, ak, b, bk, bn, M, K, N, pa, pb);
    };
    if (M == 1) rows(Count<1>{});
    else rows(Count<ANY>{});
}
template <class B>
void apart_multiply_halves(bool fresh, float* c, int64_t cm, const float* a, int64_t am, int64_t ak, const B* b,
                           int64_t bk, int64_t bn, int64_t M, int64_t K, int64_t N, float* pa, float* pb) {
    if (fresh) multiply_halves<ANY, true>(c, cm, a, am, ak, b, bk, bn, M, K, N, pa, pb);
    else multiply_halves<ANY, false>(c, cm, a, am, ak, b, bk, bn, M, K, N, pa, pb);
}
}  // namespace prism
