// Functions in float32, to about two units in the last place.
namespace prism __attribute__((visibility("hidden"))) {
template <class F> PRISM_INLINE vf v_lanewise(F f, vf x) {
    vf r = {};
    for (int l = 0; l < VL; ++l) r[l] = f(x[l]);
    return r;
}
PRISM_INLINE vf v_round(vf x) {
    // Numbers from 2^23 on are integers, and NaN; adding 2^23 rounds the others, half to even. The sign of zero stays.
    vf a = v_abs(x), shifted = a + 0x1p23f;
    vf r = shifted - 0x1p23f;
    r = (vf)((vi)r | ((vi)x & INT32_MIN));
    return a < 0x1p23f ? r : x;
}
PRISM_INLINE vf v_floor(vf x) {
    vf r = v_round(x);
    vf lower = r - 1.0f;
    vf y = r > x ? lower : r;
    return y == 0.0f ? (vf)((vi)y | ((vi)x & INT32_MIN)) : y;
}
PRISM_INLINE vf v_sign(vf x) {
    return x > 0.0f ? v_all(1.0f) : (x < 0.0f ? v_all(-1.0f) : v_all(0.0f));
}
PRISM_INLINE vf v_sqrt(vf x) {
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_sqrtps512_mask)
    return __builtin_ia32_sqrtps512_mask(x, vf{}, (unsigned short)-1, 4);
#elif PRISM_LANES == 8 && __has_builtin(__builtin_ia32_sqrtps256)
    return __builtin_ia32_sqrtps256(x);
#else
    return v_lanewise([](float a) { return __builtin_sqrtf(a); }, x);
#endif
}
// x * 2^n for |n| <= 252, in two steps so that neither factor over- or underflows.
PRISM_INLINE vf v_scale(vf x, vi n) {
    vi half = n >> 1, rest = n - half;
    return x * (vf)((half + 127) << 23) * (vf)((rest + 127) << 23);
}
// Bounds that NaN passes.
PRISM_INLINE vf v_at_most(vf x, float bound) {
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_minps512_mask)
    return __builtin_ia32_minps512_mask(v_all(bound), x, vf{}, (unsigned short)-1, 4);
#else
    return x > bound ? v_all(bound) : x;
#endif
}
PRISM_INLINE vf v_at_least(vf x, float bound) {
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_maxps512_mask)
    return __builtin_ia32_maxps512_mask(v_all(bound), x, vf{}, (unsigned short)-1, 4);
#else
    return x < bound ? v_all(bound) : x;
#endif
}
template <bool two> PRISM_INLINE vf v_power(vf x) {
    // exp(x) = 2^n exp(r), |r| <= ln(2)/2; 1 + r + r^2 q(r) with the q of degree 4 that has the least relative error,
    // 3.1e-9. To the base 2, whole powers are exact.
    vf c = v_at_least(v_at_most(x, two ? 129.0f : 89.0f), two ? -151.0f : -104.0f);
    vf units = two ? c : c * 1.44269504f;
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_rndscaleps_mask)
    vf n = __builtin_ia32_rndscaleps_mask(units, 0, vf{}, (unsigned short)-1, 4);
#else
    vf magic = v_all(0x1.8p23f);
    vf shifted = units + magic;
    vf n = shifted - magic;
#endif
    vf r = two ? (c - n) * 0.693147181f : c - n * 0.693145751953125f;
    if (!two) r = r - n * 1.42860677e-6f;
    vf p = v_all(1.3814466969e-3f);
    p = p * r + 8.3687804382e-3f;
    p = p * r + 4.1668394215e-2f;
    p = p * r + 1.6666520108e-1f;
    p = p * r + 4.9999993412e-1f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    // What rounds to 0, as where something is masked, is 0 before it is scaled: numbers below the least normal one take
    // processors a hundred cycles.
    p = v_sel(x <= (two ? -150.0f : -103.98f), vf{}, p);
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_scalefps512_mask)
    return __builtin_ia32_scalefps512_mask(p, n, vf{}, (unsigned short)-1, 4);
#else
    return v_scale(p, v_to_i(n));
#endif
}
template <bool two> PRISM_INLINE vf v_logarithm(vf x) {
    // log(x) = e ln(2) + log(m), sqrt(1/2) <= m < sqrt(2), to the base 2 without that factor; the polynomial is
    // Cephes' (Moshier).
    vi tiny = x < 0x1p-126f;
    vf scaled = tiny ? x * 0x1p23f : x;
    vi bits = (vi)scaled;
    vi offset = bits - 0x3f3504f3;
    vi e = (offset >> 23) - (tiny & 23);
    vf f = (vf)((offset & 0x7fffff) + 0x3f3504f3) - 1.0f;
    vf z = f * f, n = v_to_f(e);
    vf p = v_all(7.0376836292e-2f);
    p = p * f - 1.1514610310e-1f;
    p = p * f + 1.1676998740e-1f;
    p = p * f - 1.2420140846e-1f;
    p = p * f + 1.4249322787e-1f;
    p = p * f - 1.6668057665e-1f;
    p = p * f + 2.0000714765e-1f;
    p = p * f - 2.4999993993e-1f;
    p = p * f + 3.3333331174e-1f;
    vf y = f * z * p;
    if (!two) y = y + n * -2.12194440e-4f;
    y = y - 0.5f * z;
    vf r = two ? n + (f + y) * 1.44269504f : f + y + n * 0.693359375f;
    r = x == INFINITY ? x : r;
    r = x == 0.0f ? v_all(-INFINITY) : r;
    return ((x < 0.0f) | (x != x)) ? v_all(NAN) : r;
}
PRISM_INLINE vf v_exp(vf x) { return v_power<false>(x); }
PRISM_INLINE vf v_exp2(vf x) { return v_power<true>(x); }
PRISM_INLINE vf v_log(vf x) { return v_logarithm<false>(x); }
PRISM_INLINE vf v_log2(vf x) { return v_logarithm<true>(x); }
PRISM_INLINE vf v_sigmoid(vf x) { return 1.0f / (1.0f + v_exp(-x)); }
PRISM_INLINE vf v_tanh(vf x) {
    vf a = v_abs(x), z = x * x;
    vf p = v_all(-5.70498872745e-3f);
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    vf small = p * z * x + x;
    vf large = 1.0f - 2.0f / (v_exp(a + a) + 1.0f);
    large = (vf)((vi)large | ((vi)x & INT32_MIN));
    return a < 0.625f ? small : (x != x ? x : large);
}
PRISM_INLINE vf v_atan(vf x) {
    // Beyond 1 what 1/x leaves of a right angle; t + t^3 q(t^2) with the q of degree 7 that has the least relative error
    // up to 1, 1.7e-8.
    vf a = v_abs(x);
    vi large = a > 1.0f;
    vf t = v_sel(large, 1.0f / a, a), z = t * t;
    vf p = v_all(2.920691855e-3f);
    p = p * z - 1.636792719e-2f;
    p = p * z + 4.321185872e-2f;
    p = p * z - 7.552213967e-2f;
    p = p * z + 1.066600457e-1f;
    p = p * z - 1.421105564e-1f;
    p = p * z + 1.999377310e-1f;
    p = p * z - 3.333315253e-1f;
    vf angle = p * z * t + t;
    angle = v_sel(large, 1.57079637f - (angle + 4.37113883e-8f), angle);
    return (vf)((vi)angle | ((vi)x & INT32_MIN));
}
PRISM_INLINE vf v_erf(vf x) {
    // N. Juffa's minimax polynomials, below one unit in the last place. From 4 on it is 1; further on an exponential would
    // be less than the least normal number, which takes a processor a hundred cycles.
    vf t = v_at_most(v_abs(x), 4.0f), s = t * t;
    vf p = v_all(-1.72853470e-5f) * t + 3.83197126e-4f;
    vf u = v_all(-3.88396438e-3f) * t + 2.42546219e-2f;
    p = p * s + u;
    p = p * t - 1.06777877e-1f;
    p = p * t - 6.34846687e-1f;
    p = p * t - 1.28717512e-1f;
    p = p * t - t;
    vf large = 1.0f - v_exp(p);
    large = (vf)((vi)large | ((vi)x & INT32_MIN));
    vf q = v_all(-5.96761703e-4f);
    q = q * s + 4.99119423e-3f;
    q = q * s - 2.67681349e-2f;
    q = q * s + 1.12819925e-1f;
    q = q * s - 3.76125336e-1f;
    q = q * s + 1.28379166e-1f;
    vf small = q * x + x;
    return t > 0.927734375f ? large : (x != x ? x : small);
}
// sin(x) for quadrant 0, cos(x) for 1: x - n pi/2 in three parts (Cody and Waite); Cephes' polynomials.
PRISM_INLINE vf v_sine(vf x, int quadrant) {
    vf n = v_round(x * 0.636619772f);
    vf r = x - n * 1.5703125f;
    r = r - n * 4.83751296997e-4f;
    r = r - n * 7.54978995489e-8f;
    vi q = v_to_i(n) + quadrant;
    vf z = r * r;
    vf s = v_all(-1.9515295891e-4f);
    s = s * z + 8.3321608736e-3f;
    s = s * z - 1.6666654611e-1f;
    s = s * z * r + r;
    vf c = v_all(2.443315711809948e-5f);
    c = c * z - 1.388731625493765e-3f;
    c = c * z + 4.166664568298827e-2f;
    c = c * z * z - 0.5f * z + 1.0f;
    vf y = (q & 1) != 0 ? c : s;
    return (vf)((vi)y ^ ((q & 2) << 30));
}
PRISM_INLINE vf v_sin(vf x) {
    if (v_any((v_abs(x) <= 4096.0f) == 0)) return v_lanewise([](float a) { return __builtin_sinf(a); }, x);
    return v_sine(x, 0);
}
PRISM_INLINE vf v_cos(vf x) {
    if (v_any((v_abs(x) <= 4096.0f) == 0)) return v_lanewise([](float a) { return __builtin_cosf(a); }, x);
    return v_sine(x, 1);
}
PRISM_INLINE vf v_pow(vf x, vf y) {
    vf r = {};
    for (int l = 0; l < VL; ++l) r[l] = __builtin_powf(x[l], y[l]);
    return r;
}
#define PRISM_SCALAR(name) PRISM_INLINE float name(float x) { return name(v_all(x))[0]; }
PRISM_SCALAR(v_round)
PRISM_SCALAR(v_floor)
PRISM_SCALAR(v_sign)
PRISM_SCALAR(v_exp)
PRISM_SCALAR(v_exp2)
PRISM_SCALAR(v_log)
PRISM_SCALAR(v_log2)
PRISM_SCALAR(v_sigmoid)
PRISM_SCALAR(v_tanh)
PRISM_SCALAR(v_atan)
PRISM_SCALAR(v_erf)
PRISM_SCALAR(v_sin)
PRISM_SCALAR(v_cos)
PRISM_INLINE float v_sqrt(float x) { return __builtin_sqrtf(x); }
PRISM_INLINE float v_pow(float x, float y) { return __builtin_powf(x, y); }
}  // namespace prism
