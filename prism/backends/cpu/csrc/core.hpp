// Vectors of PRISM_LANES elements, in the vector extensions that GCC and Clang share, and what moves them.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#ifdef _OPENMP
#include <omp.h>
#endif
#ifndef __has_builtin
#define __has_builtin(x) 0
#endif
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define PRISM_LANES 16
#elif defined(__AVX__)
#define PRISM_LANES 8
#else
#define PRISM_LANES 4
#endif
#if PRISM_LANES == 16 && defined(__AVX512BF16__)
#define PRISM_PAIRS 1
#else
#define PRISM_PAIRS 0
#endif
#define PRISM_INLINE inline __attribute__((always_inline))
#define PRISM_BODY __attribute__((always_inline))
#pragma GCC diagnostic ignored "-Wpsabi"
// Of <cmath>, whose special functions take half of the time of a compilation, builtins are all that is needed.
#ifndef INFINITY
#define INFINITY __builtin_inff()
#endif
#ifndef NAN
#define NAN __builtin_nanf("")
#endif

// Hidden: what a library keeps (scratch memory, panels of weights) is its own, also beside others of the same names.
namespace prism __attribute__((visibility("hidden"))) {
constexpr int64_t VL = PRISM_LANES;
typedef float vf __attribute__((vector_size(4 * PRISM_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * PRISM_LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * PRISM_LANES)));
typedef int64_t vl __attribute__((vector_size(8 * PRISM_LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * PRISM_LANES)));
typedef int16_t vs __attribute__((vector_size(2 * PRISM_LANES)));
typedef int8_t vb __attribute__((vector_size(PRISM_LANES)));
typedef uint8_t vub __attribute__((vector_size(PRISM_LANES)));
typedef float v8 __attribute__((vector_size(32)));
struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

// Whether all lanes of a vector stand inside of the axis, known when compiled.
struct Whole { static constexpr bool all = true; };
struct Part { static constexpr bool all = false; };
template <int N> struct Count { static constexpr int n = N; };

constexpr PRISM_INLINE int64_t v_cdiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr PRISM_INLINE int64_t v_mini(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr PRISM_INLINE int64_t v_maxi(int64_t a, int64_t b) { return a > b ? a : b; }

// A scalar in every lane (x - 0, because -0 + 0 is 0).
PRISM_INLINE vf v_all(float x) { return x - vf{}; }
PRISM_INLINE vi v_all(int32_t x) { return x - vi{}; }
PRISM_INLINE vl v_all(int64_t x) { return x - vl{}; }
PRISM_INLINE vi v_all(bool x) { return -(int32_t)x - vi{}; }
PRISM_INLINE vf v_all(vf x) { return x; }
PRISM_INLINE vi v_all(vi x) { return x; }
PRISM_INLINE vl v_all(vl x) { return x; }

PRISM_INLINE vi v_iota() {
    vi r = {};
    for (int l = 0; l < VL; ++l) r[l] = l;
    return r;
}
PRISM_INLINE vi v_lanes(int64_t n) { return v_iota() < (int32_t)n; }

// Bits reinterpreted.
PRISM_INLINE vi v_bits(vf x) { return (vi)x; }
PRISM_INLINE vf v_float(vi x) { return (vf)x; }

// Selection; masks are all ones or zero.
PRISM_INLINE vf v_sel(vi m, vf a, vf b) { return m ? a : b; }
PRISM_INLINE vi v_sel(vi m, vi a, vi b) { return m ? a : b; }
PRISM_INLINE vl v_sel(vi m, vl a, vl b) { return __builtin_convertvector(m, vl) ? a : b; }
PRISM_INLINE float v_sel(bool m, float a, float b) { return m ? a : b; }
PRISM_INLINE int32_t v_sel(bool m, int32_t a, int32_t b) { return m ? a : b; }
PRISM_INLINE int64_t v_sel(bool m, int64_t a, int64_t b) { return m ? a : b; }
PRISM_INLINE bool v_sel(bool m, bool a, bool b) { return m ? a : b; }

// Conversions.
PRISM_INLINE vf v_to_f(vi x) { return __builtin_convertvector(x, vf); }
PRISM_INLINE vf v_to_f(vl x) { return __builtin_convertvector(x, vf); }
PRISM_INLINE vf v_mask_to_f(vi m) { return m ? v_all(1.0f) : vf{}; }
PRISM_INLINE vi v_to_i(vf x) { return __builtin_convertvector(x, vi); }
PRISM_INLINE vi v_to_i(vl x) { return __builtin_convertvector(x, vi); }
PRISM_INLINE vl v_to_l(vi x) { return __builtin_convertvector(x, vl); }
PRISM_INLINE vl v_to_l(vf x) { return __builtin_convertvector(x, vl); }
PRISM_INLINE vi v_narrow(vl m) { return __builtin_convertvector(m, vi); }

// bfloat16 and float16, rounded to nearest even.
PRISM_INLINE vf v_widen(vh h, bf16*) { return (vf)(__builtin_convertvector(h, vu) << 16); }
PRISM_INLINE vh v_narrow(vf x, bf16*) {
#if PRISM_PAIRS
    // Subnormal numbers, below 1.2e-38, become zero here.
    vh r;
    __asm__("vcvtneps2bf16 %1, %0" : "=v"(r) : "v"(x));
    return r;
#else
    vu u = (vu)x;
    vu r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    vu quiet = (u >> 16) | 0x40u;
    return __builtin_convertvector((vu)v_sel(x != x, (vi)quiet, (vi)r), vh);
#endif
}
PRISM_INLINE vf v_widen(vh h, f16*) {
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_vcvtph2ps512_mask)
    typedef short h16 __attribute__((vector_size(32)));
    return (vf)__builtin_ia32_vcvtph2ps512_mask((h16)h, vf{}, (unsigned short)-1, 4);
#elif PRISM_LANES == 8 && defined(__F16C__) && __has_builtin(__builtin_ia32_vcvtph2ps256)
    typedef short h8 __attribute__((vector_size(16)));
    return (vf)__builtin_ia32_vcvtph2ps256((h8)h);
#else
    vu u = __builtin_convertvector(h, vu);
    vu sign = (u & 0x8000u) << 16, magnitude = (u & 0x7fffu) << 13;
    // Exponents shift by 112; a subnormal number is a multiple of 2^-24; infinity and NaN keep theirs.
    vf scaled = (vf)magnitude * 0x1p112f;
    vi special = (vi)magnitude >= (0x7c00 << 13);
    vu r = (vu)v_sel(special, (vi)((magnitude & 0x7fffffu) | 0x7f800000u), (vi)scaled);
    return (vf)(r | sign);
#endif
}
PRISM_INLINE vh v_narrow(vf x, f16*) {
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_vcvtps2ph512_mask)
    typedef short h16 __attribute__((vector_size(32)));
    return (vh)__builtin_ia32_vcvtps2ph512_mask(x, 0, h16{}, (unsigned short)-1);
#elif PRISM_LANES == 8 && defined(__F16C__) && __has_builtin(__builtin_ia32_vcvtps2ph256)
    return (vh)__builtin_ia32_vcvtps2ph256(x, 0);
#else
    vu u = (vu)x, sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    vu normal = (a + 0xfffu + ((a >> 13) & 1u) - (112u << 23)) >> 13;
    // Adding a number whose last bit is 2^-24 rounds a subnormal result.
    vu small = (vu)((vf)a + 0.5f) - (126u << 23);
    vu r = (vu)v_sel((vi)a < (113 << 23), (vi)small, (vi)normal);
    r = (vu)v_sel((vi)a >= 0x477ff000, (vi)(vu{} + 0x7c00u), (vi)r);
    r = (vu)v_sel((vi)a > 0x7f800000, (vi)(vu{} + 0x7e00u), (vi)r);
    return __builtin_convertvector(r | sign, vh);
#endif
}

// How elements of a tensor are stored, and the vector that a tile has of them. Truth values are masks in tiles.
typedef float u_vf __attribute__((vector_size(4 * PRISM_LANES), aligned(4), may_alias));
typedef int32_t u_vi __attribute__((vector_size(4 * PRISM_LANES), aligned(4), may_alias));
typedef int64_t u_vl __attribute__((vector_size(8 * PRISM_LANES), aligned(8), may_alias));
typedef uint16_t u_vh __attribute__((vector_size(2 * PRISM_LANES), aligned(2), may_alias));
typedef int8_t u_vb __attribute__((vector_size(PRISM_LANES), aligned(1), may_alias));
PRISM_INLINE vf v_load(const float* p) { return *(const u_vf*)p; }
PRISM_INLINE vf v_load(const bf16* p) { return v_widen((vh)*(const u_vh*)p, (bf16*)0); }
PRISM_INLINE vf v_load(const f16* p) { return v_widen((vh)*(const u_vh*)p, (f16*)0); }
PRISM_INLINE vi v_load(const int32_t* p) { return *(const u_vi*)p; }
PRISM_INLINE vl v_load(const int64_t* p) { return *(const u_vl*)p; }
PRISM_INLINE vi v_load(const int16_t* p) { return __builtin_convertvector((vs)*(const u_vh*)p, vi); }
// Compilers take bytes apart one by one unless they are told how.
#if defined(__AVX2__)
#define PRISM_WIDEN(HOW, P, BY)                                       \
    vi wide;                                                          \
    __asm__(HOW " %1, %0" : "=v"(wide) : "m"(*(const u_vb*)(P)));     \
    return wide
#else
#define PRISM_WIDEN(HOW, P, BY) return __builtin_convertvector(__builtin_convertvector(BY(*(const u_vb*)(P)), vs), vi)
#endif
PRISM_INLINE vi v_load(const int8_t* p) { PRISM_WIDEN("vpmovsxbd", p, (vb)); }
PRISM_INLINE vi v_load(const uint8_t* p) { PRISM_WIDEN("vpmovzxbd", p, (vub)); }
PRISM_INLINE vi v_load(const bool* p) { return v_load((const uint8_t*)p) != 0; }
#if PRISM_LANES == 16
PRISM_INLINE vb v_bytes(vi x) { return __builtin_convertvector(x, vb); }
#else
PRISM_INLINE vb v_bytes(vi x) { return __builtin_convertvector(__builtin_convertvector(x, vs), vb); }
#endif
PRISM_INLINE void v_store(float* p, vf x) { *(u_vf*)p = x; }
PRISM_INLINE void v_store(bf16* p, vf x) { *(u_vh*)p = v_narrow(x, p); }
PRISM_INLINE void v_store(f16* p, vf x) { *(u_vh*)p = v_narrow(x, p); }
PRISM_INLINE void v_store(int32_t* p, vi x) { *(u_vi*)p = x; }
PRISM_INLINE void v_store(int64_t* p, vl x) { *(u_vl*)p = x; }
PRISM_INLINE void v_store(int16_t* p, vi x) { *(u_vh*)p = (vh)__builtin_convertvector(x, vs); }
PRISM_INLINE void v_store(int8_t* p, vi x) { *(u_vb*)p = v_bytes(x); }
PRISM_INLINE void v_store(uint8_t* p, vi x) { *(u_vb*)p = v_bytes(x); }
PRISM_INLINE void v_store(bool* p, vi x) { *(u_vb*)p = v_bytes(x & 1); }

// Single elements, in the same types as lanes.
PRISM_INLINE float v_one(const float* p) { return *p; }
PRISM_INLINE float v_one(const bf16* p) {
    uint32_t u = (uint32_t)p->bits << 16;
    float x;
    memcpy(&x, &u, 4);
    return x;
}
PRISM_INLINE float v_one(const f16* p) {
    vh h = {};
    h[0] = p->bits;
    return v_widen(h, (f16*)0)[0];
}
PRISM_INLINE int32_t v_one(const int32_t* p) { return *p; }
PRISM_INLINE int64_t v_one(const int64_t* p) { return *p; }
PRISM_INLINE int32_t v_one(const int16_t* p) { return *p; }
PRISM_INLINE int32_t v_one(const int8_t* p) { return *p; }
PRISM_INLINE int32_t v_one(const uint8_t* p) { return *p; }
PRISM_INLINE bool v_one(const bool* p) { return *(const uint8_t*)p != 0; }
PRISM_INLINE void v_put(float* p, float x) { *p = x; }
PRISM_INLINE void v_put(bf16* p, float x) { p->bits = v_narrow(v_all(x), p)[0]; }
PRISM_INLINE void v_put(f16* p, float x) { p->bits = v_narrow(v_all(x), p)[0]; }
PRISM_INLINE void v_put(int32_t* p, int32_t x) { *p = x; }
PRISM_INLINE void v_put(int64_t* p, int64_t x) { *p = x; }
PRISM_INLINE void v_put(int16_t* p, int32_t x) { *p = (int16_t)x; }
PRISM_INLINE void v_put(int8_t* p, int32_t x) { *p = (int8_t)x; }
PRISM_INLINE void v_put(uint8_t* p, int32_t x) { *p = (uint8_t)x; }
PRISM_INLINE void v_put(bool* p, bool x) { *p = x; }

// A vector of neighbours; of n of them where not all stand inside (the other lanes are zero, and not touched).
template <class F, class S> PRISM_INLINE auto v_ld(F, const S* p, int64_t n) {
    if constexpr (F::all) {
        return v_load(p);
    } else {
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_loadups512_mask)
        if constexpr (sizeof(S) == 4)
            return (decltype(v_load(p)))__builtin_ia32_loadups512_mask(
                (const float*)p, vf{}, (unsigned short)((1u << n) - 1));
#endif
        S buffer[VL] = {};
        memcpy((void*)buffer, (const void*)p, n * sizeof(S));
        return v_load(buffer);
    }
}
template <class F, class S, class X> PRISM_INLINE void v_st(F, S* p, X x, int64_t n) {
    if constexpr (F::all) {
        v_store(p, x);
    } else {
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_storeups512_mask)
        if constexpr (sizeof(S) == 4) {
            __builtin_ia32_storeups512_mask((float*)p, (vf)x, (unsigned short)((1u << n) - 1));
            return;
        }
#endif
        S buffer[VL];
        v_store(buffer, x);
        memcpy((void*)p, (const void*)buffer, n * sizeof(S));
    }
}
// Memory that a launch goes through: what outgrows the last-level cache is stored past the caches, and asked for ahead,
// because the hardware's own prefetchers stop at the end of a page.
constexpr int64_t AHEAD = 16384, PAGE = 4096;
// Into the second cache: the first one's few outstanding misses stay free for loads.
PRISM_INLINE void v_ask(const void* p) { __builtin_prefetch(p, 0, 2); }
inline int64_t v_cache(const char* path, int64_t otherwise) {
    // sysconf adds up the caches of a package, of which this core may share one.
    long size = 0;
    char unit = 'K';
    if (FILE* file = fopen(path, "r")) {
        if (fscanf(file, "%ld%c", &size, &unit) < 1) size = 0;
        fclose(file);
    }
    return size > 0 ? (int64_t)size << (unit == 'M' ? 20 : 10) : otherwise;
}
inline int64_t v_second_level() {
    static const int64_t bytes = v_cache("/sys/devices/system/cpu/cpu0/cache/index2/size", (int64_t)1 << 19);
    return bytes;
}
inline int64_t v_last_level() {
    static const int64_t bytes = v_cache("/sys/devices/system/cpu/cpu0/cache/index3/size", (int64_t)16 << 20);
    return bytes;
}
inline bool v_outgrows(int64_t bytes) { return bytes > v_last_level() / 3; }
// 0 for what the caches hold; else the largest tile of which the next one may be asked for.
inline int64_t v_soon(int64_t bytes) { return v_outgrows(bytes / 2) ? v_second_level() / 8 : 0; }
// How far ahead one of several loads of a tile asks: the last one does, for the next tile.
PRISM_INLINE int64_t v_next(int64_t soon, int64_t tile, bool again) { return tile > soon ? AHEAD : again ? 0 : tile; }
PRISM_INLINE bool v_past(float* p, vf x) {
    if ((uintptr_t)p % sizeof(vf)) return false;
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_movntps512)
    __builtin_ia32_movntps512(p, x);
    return true;
#elif PRISM_LANES == 8 && __has_builtin(__builtin_ia32_movntps256)
    __builtin_ia32_movntps256(p, x);
    return true;
#else
    return false;
#endif
}
template <class S> PRISM_INLINE bool v_past_half(S* p, vf x) {
    if ((uintptr_t)p % sizeof(vh)) return false;
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_movntps256)
    __builtin_ia32_movntps256((float*)p, (v8)v_narrow(x, p));
    return true;
#else
    return false;
#endif
}
PRISM_INLINE bool v_past(bf16* p, vf x) { return v_past_half(p, x); }
PRISM_INLINE bool v_past(f16* p, vf x) { return v_past_half(p, x); }
template <class S, class X> PRISM_INLINE bool v_past(S*, X) { return false; }
// A store to a tensor; `past` says that caches do not hold what the launch writes.
template <class F, class S, class X> PRISM_INLINE void v_out(bool past, F f, S* p, X x, int64_t n) {
    if constexpr (F::all)
        if (past && v_past(p, x)) return;
    v_st(f, p, x, n);
}
PRISM_INLINE void v_fence(bool past) {
#if __has_builtin(__builtin_ia32_sfence) && defined(__SSE__)
    if (past) __builtin_ia32_sfence();
#else
    (void)past;
#endif
}
// A load of a tensor's neighbours; `ahead` says how many bytes further on memory is asked for, 0 that it is not.
template <class F, class S> PRISM_INLINE auto v_in(int64_t ahead, F f, const S* p, int64_t n) {
    if constexpr (F::all)
        if (ahead) v_ask((const char*)p + ahead);
    return v_ld(f, p, n);
}
// The same with a stride between neighbours.
template <class F, class S> PRISM_INLINE auto v_gather(F, const S* p, int64_t stride, int64_t n) {
    S buffer[VL] = {};
    for (int64_t l = 0; l < (F::all ? VL : n); ++l) buffer[l] = p[l * stride];
    return v_load(buffer);
}
template <class F, class S, class X> PRISM_INLINE void v_scatter(F, S* p, int64_t stride, X x, int64_t n) {
    S buffer[VL];
    v_store(buffer, x);
    for (int64_t l = 0; l < (F::all ? VL : n); ++l) p[l * stride] = buffer[l];
}
// The next term of a sum t, the done-th, as a sum of sums: 16 terms go into one of b's first `count` sums, and 16 of
// those into one of its last, so that few numbers are added one after another.
template <class F>
PRISM_INLINE void v_cascade(F full, float* t, float* b, int64_t count, int64_t stride, vf x, int64_t done, bool last,
                            int64_t n) {
    auto get = [&](float* p) { return stride == 1 ? v_ld(full, p, n) : v_gather(full, p, stride, n); };
    auto put = [&](float* p, vf v) {
        if (stride == 1) v_st(full, p, v, n);
        else v_scatter(full, p, stride, v, n);
    };
    x += get(b);
    if (done % 16 && !last) return put(b, x);
    put(b, vf{});
    x += get(b + count);
    if (done % 256 && !last) return put(b + count, x);
    put(b + count, vf{});
    put(t, get(t) + x);
}

// The sums of a run to those of all runs; the next run begins at 0.
template <int N> PRISM_INLINE void v_add_to(vf (&all)[N], vf (&run)[N]) {
    for (int n = 0; n < N; ++n) all[n] += run[n], run[n] = vf{};
}
PRISM_INLINE void v_fill(float* p, int64_t n, float x) {
    for (int64_t i = 0; i < n; ++i) p[i] = x;
}
// What was added up to what holds it; it begins anew.
inline void v_carry(float* all, float* some, int64_t n) {
    for (int64_t i = 0; i < n; ++i) all[i] += some[i], some[i] = 0.0f;
}
PRISM_INLINE bool v_any(vi m) {
    uint64_t words[sizeof(vi) / 8], any = 0;
    memcpy(words, &m, sizeof(m));
    for (unsigned w = 0; w < sizeof(vi) / 8; ++w) any |= words[w];
    return any != 0;
}
inline int64_t v_offset(int64_t) { return 0; }
template <class X, class... P> PRISM_INLINE int64_t v_offset(int64_t l, X place, int64_t stride, P... more) {
    return (int64_t)place[l] * stride + v_offset(l, more...);
}
// Only where the mask holds; elsewhere 0, and memory is not touched.
template <class S> PRISM_INLINE auto v_some(vi m, const S* p, int64_t stride) {
    S buffer[VL] = {};
    if (v_any(m))
        for (int64_t l = 0; l < VL; ++l)
            if (m[l]) buffer[l] = p[l * stride];
    return v_load(buffer);
}
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_loadups512_mask) && __has_builtin(__builtin_ia32_ptestmd512)
PRISM_INLINE auto v_some(vi m, const float* p, int64_t stride) {
    if (stride != 1) return v_some<float>(m, p, stride);
    return (vf)__builtin_ia32_loadups512_mask(p, vf{}, __builtin_ia32_ptestmd512(m, m, (unsigned short)-1));
}
#endif
template <class F, class S> PRISM_INLINE auto v_gather_if(F f, vi m, const S* p, int64_t stride, int64_t n) {
    if constexpr (!F::all) m &= v_lanes(n);
    if (stride == 1 && !v_any(~m)) return v_load(p);
    return v_some(m, p, stride);
}
// The same at places of their own: each lane's are added, each times a stride.
template <class F, class S, class... P>
PRISM_INLINE auto v_pick(F f, vi m, const S* p, int64_t stride, int64_t n, P... places) {
    if constexpr (!F::all) m &= v_lanes(n);
    S buffer[VL] = {};
    for (int64_t l = 0; l < VL; ++l)
        if (m[l]) buffer[l] = p[l * stride + v_offset(l, places...)];
    return v_load(buffer);
}
template <class F, class S, class X>
PRISM_INLINE void v_scatter_if(F f, vi m, S* p, int64_t stride, X x, int64_t n) {
    if constexpr (!F::all) m &= v_lanes(n);
    S buffer[VL];
    v_store(buffer, x);
    for (int64_t l = 0; l < VL; ++l)
        if (m[l]) p[l * stride] = buffer[l];
}

// To what is there; SHARED: while others may add to it, too, so nothing that they add is lost.
template <bool SHARED, class S, class X> PRISM_INLINE void v_more(S* p, X more) {
    const S x = (S)more;
    if constexpr (!SHARED) {
        *p += x;
    } else if constexpr ((S)0.5 == 0) {
        __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
    } else {
        S held, sum;
        __atomic_load(p, &held, __ATOMIC_RELAXED);
        do sum = held + x;
        while (!__atomic_compare_exchange(p, &held, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    }
}
// The same lane by lane, one after another, where the mask holds: several may be at one place.
template <bool SHARED, class F, class S, class X, class... P>
PRISM_INLINE void v_more_at(F f, vi m, S* p, int64_t stride, X x, int64_t n, P... places) {
    if constexpr (!F::all) m &= v_lanes(n);
    S buffer[VL];
    v_store(buffer, x);
    for (int64_t l = 0; l < VL; ++l)
        if (m[l]) v_more<SHARED>(p + l * stride + v_offset(l, places...), buffer[l]);
}
// The same to neighbours.
template <bool SHARED, class F, class S, class X> PRISM_INLINE void v_more_in(F f, S* p, X x, int64_t n) {
    if constexpr (SHARED) v_more_at<SHARED>(f, v_lanes(VL), p, 1, x, n);
    else v_st(f, p, v_ld(f, p, n) + x, n);
}

// Maximum and minimum keep NaN.
PRISM_INLINE vf v_max(vf a, vf b) {
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_maxps512_mask) && __has_builtin(__builtin_ia32_cmpps512_mask)
    // The instruction gives b where one is NaN; a stays where it is NaN (7: ordered).
    return __builtin_ia32_maxps512_mask(a, b, a, __builtin_ia32_cmpps512_mask(a, a, 7, (unsigned short)-1, 4), 4);
#else
    vf m = a > b ? a : b;
    return a != a ? a : m;
#endif
}
PRISM_INLINE vf v_min(vf a, vf b) {
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_minps512_mask) && __has_builtin(__builtin_ia32_cmpps512_mask)
    // The instruction gives b where one is NaN; a stays where it is NaN (7: ordered).
    return __builtin_ia32_minps512_mask(a, b, a, __builtin_ia32_cmpps512_mask(a, a, 7, (unsigned short)-1, 4), 4);
#else
    vf m = a < b ? a : b;
    return a != a ? a : m;
#endif
}
template <class X> PRISM_INLINE X v_max(X a, X b) { return ((a > b) | (a != a)) ? a : b; }
template <class X> PRISM_INLINE X v_min(X a, X b) { return ((a < b) | (a != a)) ? a : b; }
PRISM_INLINE vi v_max(vi a, vi b) { return a > b ? a : b; }
PRISM_INLINE vi v_min(vi a, vi b) { return a < b ? a : b; }
PRISM_INLINE vl v_max(vl a, vl b) { return a > b ? a : b; }
PRISM_INLINE vl v_min(vl a, vl b) { return a < b ? a : b; }
PRISM_INLINE float v_max(float a, float b) { return a > b || a != a ? a : b; }
PRISM_INLINE float v_min(float a, float b) { return a < b || a != a ? a : b; }
PRISM_INLINE int32_t v_max(int32_t a, int32_t b) { return a > b ? a : b; }
PRISM_INLINE int32_t v_min(int32_t a, int32_t b) { return a < b ? a : b; }
PRISM_INLINE int64_t v_max(int64_t a, int64_t b) { return a > b ? a : b; }
PRISM_INLINE int64_t v_min(int64_t a, int64_t b) { return a < b ? a : b; }

struct Sum {
    static constexpr float start = 0.0f;
    template <class X> static PRISM_INLINE X of(X a, X b) { return a + b; }
};
struct Prod {
    static constexpr float start = 1.0f;
    template <class X> static PRISM_INLINE X of(X a, X b) { return a * b; }
};
struct Max {
    static constexpr float start = -INFINITY;
    template <class X> static PRISM_INLINE X of(X a, X b) { return v_max(a, b); }
};
struct Min {
    static constexpr float start = INFINITY;
    template <class X> static PRISM_INLINE X of(X a, X b) { return v_min(a, b); }
};
// All lanes in one, half by half; T is what a lane holds.
template <class T, class K, class V> PRISM_INLINE T v_folded(K, V x) {
    typedef T h8 __attribute__((vector_size(8 * sizeof(T))));
    typedef T h4 __attribute__((vector_size(4 * sizeof(T))));
#if PRISM_LANES == 16
    h8 halves[2];
    memcpy(halves, &x, sizeof(x));
    const h8 half = K::of(halves[0], halves[1]);
#else
    const V half = x;
#endif
#if PRISM_LANES > 4
    h4 quarters[2];
    memcpy(quarters, &half, sizeof(half));
    const h4 q = K::of(quarters[0], quarters[1]);
#else
    const h4 q = half;
#endif
    return K::of(K::of(q[0], q[2]), K::of(q[1], q[3]));
}
template <class K> PRISM_INLINE float v_across(K k, vf x) { return v_folded<float>(k, x); }
// The largest or least lane, in whole numbers of the same order: an instruction a step, where keeping NaN takes several and
// branches. NaN is beyond all others, whatever its sign.
template <class K> PRISM_INLINE float v_extreme(K k, vf x) {
    const vi beyond = v_all(K::start < 0 ? INT32_MAX : INT32_MIN);
    int32_t place = v_folded<int32_t>(k, v_sel(x != x, beyond, (vi)x ^ (((vi)x >> 31) & INT32_MAX)));
    place ^= (place >> 31) & INT32_MAX;
    float found;
    memcpy(&found, &place, sizeof(place));
    return found;
}
PRISM_INLINE float v_across(Max k, vf x) { return v_extreme(k, x); }
PRISM_INLINE float v_across(Min k, vf x) { return v_extreme(k, x); }
template <class K, class F> PRISM_INLINE vf v_inside(K, F, vf x, int64_t n) {
    if constexpr (F::all) return x;
    else return v_sel(v_lanes(n), x, v_all(K::start));
}

PRISM_INLINE vf v_abs(vf x) { return (vf)((vi)x & 0x7fffffff); }
PRISM_INLINE vi v_abs(vi x) { return x < 0 ? -x : x; }
PRISM_INLINE vl v_abs(vl x) { return x < 0 ? -x : x; }
PRISM_INLINE float v_abs(float x) { return __builtin_fabsf(x); }
PRISM_INLINE int32_t v_abs(int32_t x) { return x < 0 ? -x : x; }
PRISM_INLINE int64_t v_abs(int64_t x) { return x < 0 ? -x : x; }
PRISM_INLINE vf v_as_bf16(vf x) { return v_widen(v_narrow(x, (bf16*)0), (bf16*)0); }
PRISM_INLINE vf v_as_f16(vf x) { return v_widen(v_narrow(x, (f16*)0), (f16*)0); }
PRISM_INLINE float v_as_bf16(float x) { return v_as_bf16(v_all(x))[0]; }
PRISM_INLINE float v_as_f16(float x) { return v_as_f16(v_all(x))[0]; }

// Memory of a thread for the tiles of one program; it is kept for the next launch.
struct Scratch {
    char* memory = nullptr;
    int64_t bytes = 0;
    char* get(int64_t wanted) {
        if (wanted > bytes) {
            free(memory);
            bytes = wanted + wanted / 4 + 4096;
            if (posix_memalign((void**)&memory, 4096, bytes)) memory = nullptr, bytes = 0;
        }
        return memory;
    }
    ~Scratch() { free(memory); }
};
inline Scratch& scratch() {
    static thread_local Scratch own;
    return own;
}
constexpr int64_t v_room(int64_t elements, int64_t bytes) { return (elements * bytes + 64 * PRISM_LANES + 63) / 64 * 64; }
template <class S> PRISM_INLINE S* v_take(char*& at, int64_t elements) {
    S* p = (S*)at;
    at += v_room(elements, sizeof(S));
    return p;
}
}  // namespace prism
