// Products of bytes plus a number each, sum (a + sa) (b + sb), in int32: exact, as the numbers are taken out of the sum.
// Four terms are one instruction where the processor has it (VNNI), sixteen by sixteen sums where it has tiles (AMX).
namespace prism __attribute__((visibility("hidden"))) {
typedef int32_t u_quads __attribute__((vector_size(4 * PRISM_LANES), aligned(1), may_alias));

template <class T> constexpr bool SIGNED = T(-1) < 0;
template <class T> constexpr bool SIGNED<Level<T>> = SIGNED<T>;
// Neighbours, `n` of them inside, as they are widened; one.
template <class T> PRISM_INLINE vi v_wide(const T* p, int64_t n) { return n >= VL ? v_load(p) : v_ld(Part{}, p, n); }
template <class T> PRISM_INLINE vi v_wide(const Level<T>* p, int64_t n) {
    return v_to_i(n >= VL ? v_load(&p->x) : v_ld(Part{}, &p->x, n));
}
template <class T> PRISM_INLINE uint8_t v_byte(const T* p) { return (uint8_t)*p; }
template <class T> PRISM_INLINE uint8_t v_byte(const Level<T>* p) { return (uint8_t)(int32_t)p->x; }

// Four signed bytes, neighbours along k, the first one lowest; what is unsigned is 128 less.
struct Quad : Kept<Quad> {
    typedef uint32_t type;
    static constexpr int64_t TERMS = 4, KIND = 4;
    template <class B> static constexpr int32_t LESS = SIGNED<B> ? 0 : 128;

    template <class B> static PRISM_INLINE vf along(const B* p) {
        return (vf)(*(const u_quads*)p ^ (int32_t)(LESS<B> * 0x01010101u));
    }
    template <class T> static PRISM_INLINE vf along(const Level<T>* p) {
        uint8_t bytes[4 * VL];
        for (int64_t i = 0; i < 4 * VL; i += VL) v_store(bytes + i, v_wide(p + i, VL));
        return along((const T*)bytes);
    }
    template <class B> static PRISM_INLINE vf across(const B* p, int64_t bk, int64_t k, int64_t left) {
        vi four = {};
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t)
            if (t < k) {
                four |= ((v_wide(p + t * bk, left) & 255) ^ LESS<B>) << (8 * t);
            }
        return (vf)four;
    }
    template <class B> static PRISM_INLINE uint32_t one(const B* p, int64_t bk, int64_t k) {
        uint32_t four = 0;
        for (int64_t t = 0; t < v_mini(k, 4); ++t) four |= (uint32_t)(v_byte(p + t * bk) ^ LESS<B>) << (8 * t);
        return four;
    }
    // sum += the unsigned bytes of x times the signed ones of w, in every lane.
    static PRISM_INLINE vi add(vi sum, uint32_t x, vi w) {
#if (PRISM_LANES == 16 && defined(__AVX512VNNI__)) || (PRISM_LANES == 8 && defined(__AVX512VNNI__) && defined(__AVX512VL__))
        vi all = v_all((int32_t)x);
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(all), "v"(w));
        return sum;
#elif PRISM_LANES == 8 && defined(__AVXVNNI__)
        vi all = v_all((int32_t)x);
        __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(all), "x"(w));
        return sum;
#elif (PRISM_LANES == 16 && defined(__AVX512BW__)) || (PRISM_LANES == 8 && defined(__AVX2__))
        typedef int16_t v2s __attribute__((vector_size(4 * PRISM_LANES)));
        vi even = v_all((int32_t)(x & 0x00ff00ff)), odd = v_all((int32_t)(x >> 8 & 0x00ff00ff));
        vi low = (vi)((v2s)w << 8 >> 8), high = (vi)((v2s)w >> 8);
        __asm__("vpmaddwd %1, %0, %0" : "+v"(low) : "v"(even));
        __asm__("vpmaddwd %1, %0, %0" : "+v"(high) : "v"(odd));
        return sum + low + high;
#else
        for (int t = 0; t < 4; ++t) sum += (int32_t)(x >> (8 * t) & 255) * (w << (24 - 8 * t) >> 24);
        return sum;
#endif
    }
    // The sums of a panel's columns.
    static void sums(int32_t* to, const uint32_t* panel, int64_t depth) {
        vi s[NR] = {};
        for (int64_t k = 0; k < depth; ++k)
            for (int j = 0; j < NR; ++j) s[j] = add(s[j], 0x01010101u, *(const u_vi*)(panel + k * PANEL + j * VL));
        for (int j = 0; j < NR; ++j) *(u_vi*)(to + j * VL) = s[j];
    }
    // Behind the panels, the sums of all columns.
    static constexpr int64_t room(int64_t K, int64_t N) { return v_packed_b(N, v_cdiv(K, TERMS) + 1); }
    template <class B> static void keep(uint32_t* to, const B* b, int64_t bk, int64_t bn, int64_t K, int64_t N) {
        const int64_t depth = v_cdiv(K, TERMS);
        pack_b<Quad>(to, b, bk, bn, K, N);
        for (int64_t n = 0; n < N; n += PANEL)
            sums((int32_t*)to + v_packed_b(N, depth) + n, to + n * depth, depth);
    }
};

#if PRISM_TILES && defined(__AMX_INT8__)
#define PRISM_BYTE_TILES 1
#define PRISM_BYTE_ADD(C, A_, B_)                        \
    do {                                                 \
        if (!SIGNED<A>) PRISM_TILE_ADD("tdpbusd", C, A_, B_); \
        else PRISM_TILE_ADD("tdpbssd", C, A_, B_);       \
    } while (0)
#else
#define PRISM_BYTE_TILES 0
#endif

// R rows of `a`, `am` bytes from one to the next, times a panel.
template <int R>
PRISM_INLINE void mul_quads(int32_t* __restrict to, const uint8_t* __restrict a, int64_t am, const uint32_t* __restrict pb,
                            int64_t depth) {
    vi s[R][NR] = {};
    for (int64_t k = 0; k < depth; ++k, pb += PANEL) {
        vi w[NR];
#pragma GCC unroll 8
        for (int j = 0; j < NR; ++j) w[j] = *(const u_vi*)(pb + j * VL);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
            uint32_t x;
            memcpy(&x, a + i * am + 4 * k, sizeof(x));
#pragma GCC unroll 8
            for (int j = 0; j < NR; ++j) s[i][j] = Quad::add(s[i][j], x, w[j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < NR; ++j) *(u_vi*)(to + i * PANEL + j * VL) = s[i][j];
}

// Of an operand that is not held panels are made in pb; rows of `a` that cannot be read as they lie are copied to pa.
template <class A, class B>
void multiply_bytes(bool fresh, int32_t* __restrict c, int64_t cm, const A* __restrict a, int64_t am, int64_t ak,
                    const B* __restrict b, int64_t bk, int64_t bn, int64_t M, int64_t K, int64_t N,
                    float* __restrict pa, float* __restrict pb, Panels& last, int64_t uses, int32_t sa, int32_t sb) {
    const uint32_t* panels = v_panels<Quad>(b, bk, bn, K, N, (uint32_t*)pb, last, uses);
    const bool kept = panels != (uint32_t*)pb;
    sb += Quad::LESS<B>;
    const int64_t depth = v_cdiv(K, 4);
    constexpr bool BYTES = sizeof(A) == 1;
    bool tiled = false, direct = BYTES && ak == 1 && K % 4 == 0 && !SIGNED<A>;
    int64_t rows = M, wide = 4 * depth;
    uint8_t flipped = SIGNED<A> ? 128 : 0;
#if PRISM_BYTE_TILES
    const int64_t whole_rows = v_cdiv(M, TILE) * TILE, whole_wide = v_cdiv(K, 4 * TILE) * 4 * TILE;
    tiled = M > MR && whole_rows * whole_wide <= v_room_a(M, K) * 4 && v_tiles();
    if (tiled) {
        direct = BYTES && ak == 1 && K % (4 * TILE) == 0 && M % TILE == 0;
        rows = whole_rows;
        wide = whole_wide;
        flipped = 0;
    }
#endif
    const uint8_t* x = (const uint8_t*)a;
    if (direct) {
        wide = am;
    } else {
        uint8_t* copy = (uint8_t*)pa;
        for (int64_t m = 0; m < rows; ++m) {
            uint8_t* row = copy + m * wide;
            const A* from = a + m * am;
            const int64_t inside = m < M ? K : 0;
            int64_t k = 0;
            if (ak == 1)
                for (; k + VL <= inside; k += VL) v_store(row + k, v_wide(from + k, VL) ^ flipped);
            for (; k < inside; ++k) row[k] = v_byte(from + k * ak) ^ flipped;
            memset(row + inside, 0, wide - inside);
        }
        x = copy;
    }
    // Of the bytes that are multiplied: those of `a` may be 128 more, as those of b are 128 less.
    const int32_t added = sa - flipped;
    auto row_sum = [&](int64_t m) {
        int32_t sum = 0;
        for (int64_t k = 0; k < K; ++k) sum += flipped || !SIGNED<A> ? (int32_t)x[m * wide + k] : (int8_t)x[m * wide + k];
        return sum;
    };
    // Sums of a panel's columns, and what is added to them.
    auto finish = [&](const int32_t* edge, const int32_t* columns, int64_t m, int64_t n, int64_t inside) PRISM_BODY {
        for (int64_t i = 0; i < inside; ++i) {
            const int32_t row = (int32_t)K * added * sb + (sb ? sb * row_sum(m + i) : 0);
            int32_t* to = c + (m + i) * cm + n;
            auto some = [&](auto full, int64_t j, int64_t lanes) PRISM_BODY {
                vi s = *(const u_vi*)(edge + i * PANEL + j) + row;
                if (added) s += added * *(const u_vi*)(columns + j);
                v_st(full, to + j, fresh ? s : v_ld(full, to + j, lanes) + s, lanes);
            };
            int64_t j = 0;
            for (; j < PANEL && n + j + VL <= N; j += VL) some(Whole{}, j, VL);
            if (j < PANEL && n + j < N) some(Part{}, j, N - n - j);
        }
    };
    alignas(64) int32_t edge[32 * PANEL];
#if PRISM_BYTE_TILES
    if (tiled) v_begin_tiles();
#endif
    for (int64_t n = 0; n < N; n += PANEL) {
        const uint32_t* w = panels + n * depth;
        int32_t own[PANEL];
        const int32_t* columns = (const int32_t*)panels + v_packed_b(N, depth) + n;
        if (!kept) {
            columns = own;
            if (added) Quad::sums(own, w, depth);
        }
#if PRISM_BYTE_TILES
        if (tiled) {
            static_assert(PANEL == 2 * TILE, "two tiles are as wide as a panel");
            uint32_t tail[TILE * PANEL];
            const int64_t whole = depth - depth % TILE;
            if (whole < depth) v_last_tile(tail, w + whole * PANEL, depth - whole);
            for (int64_t m = 0; m < M; m += 2 * TILE) {
                const bool two = M - m > TILE;
                PRISM_TILE_ZERO(0);
                PRISM_TILE_ZERO(1);
                PRISM_TILE_ZERO(2);
                PRISM_TILE_ZERO(3);
                for (int64_t l = 0; l < depth; l += TILE) {
                    const uint8_t* from = x + m * wide + 4 * l;
                    const uint32_t* y = l < whole ? w + l * PANEL : tail;
                    PRISM_TILE_LOAD(6, y, PANEL);
                    PRISM_TILE_LOAD(7, y + TILE, PANEL);
                    PRISM_TILE_ROWS(4, from, wide);
                    PRISM_BYTE_ADD(0, 4, 6);
                    PRISM_BYTE_ADD(1, 4, 7);
                    if (two) {
                        PRISM_TILE_ROWS(5, from + TILE * wide, wide);
                        PRISM_BYTE_ADD(2, 5, 6);
                        PRISM_BYTE_ADD(3, 5, 7);
                    }
                }
                PRISM_TILE_STORE(0, edge, PANEL);
                PRISM_TILE_STORE(1, edge + TILE, PANEL);
                if (two) {
                    PRISM_TILE_STORE(2, edge + TILE * PANEL, PANEL);
                    PRISM_TILE_STORE(3, edge + TILE * PANEL + TILE, PANEL);
                }
                finish(edge, columns, m, n, v_mini(2 * TILE, M - m));
            }
            continue;
        }
#endif
        auto some = [&](auto count, int64_t m) PRISM_BODY {
            constexpr int R = decltype(count)::n;
            mul_quads<R>(edge, x + m * wide, wide, w, depth);
            finish(edge, columns, m, n, R);
        };
        int64_t m = 0;
        for (; m + MR <= M; m += MR) some(Count<(int)MR>{}, m);
        for (; m + 4 <= M; m += 4) some(Count<4>{}, m);
        for (; m + 2 <= M; m += 2) some(Count<2>{}, m);
        if (m < M) some(Count<1>{}, m);
    }
#if PRISM_BYTE_TILES
    if (tiled) v_end_tiles();
#endif
}
}  // namespace prism
