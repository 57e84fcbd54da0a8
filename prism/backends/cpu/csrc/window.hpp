// Products over windows, as convolutions are: of what all pixels see one copy is made, in which taps are shifts, and the sum
// over taps and terms stays in registers. Pixels of all axes are one row of places, so that narrow images fill vectors; what
// stands between the end of an image's row and the next one's start is computed, too, and not stored.
namespace prism __attribute__((visibility("hidden"))) {
// Where what a window sees is in its copy, and pixels in the result.
struct Frame {
    const Along* along;
    int64_t axes, places = 1, pitch, pixels = 1, taps = 1;
    int64_t apart[MOST_ALONG], plane[MOST_ALONG];  // from place to place along an axis, and from phase to phase
    Frame(const Along* given, int64_t count) : along(given), axes(count) {
        for (int64_t d = axes - 1; d >= 0; --d) {
            apart[d] = places;
            pixels += (along[d].count - 1) * places;
            places *= along[d].length();
            taps *= along[d].taps;
        }
        for (int64_t d = axes - 1; d >= 0; --d) {
            plane[d] = places;
            places *= along[d].phases();
        }
        pitch = v_pitch(places);
    }
    // By how much a tap shifts, and which of all weights are its own.
    int64_t shift(const int64_t* tap) const {
        int64_t at = 0;
        for (int64_t d = 0; d < axes; ++d) {
            const Along& a = along[d];
            at += tap[d] % a.period() * plane[d] + tap[d] * a.dilation / a.stride * apart[d];
        }
        return at;
    }
    int64_t weights(const int64_t* tap) const {
        int64_t at = 0;
        for (int64_t d = 0; d < axes; ++d) at = at * along[d].taps + tap[d];
        return at;
    }
};

// The rows of pixels in turn: where one starts in the copy, and in the result.
struct Row {
    const Frame* frame;
    int64_t at = 0, out = 0, index[MOST_ALONG] = {};
    explicit Row(const Frame& f) : frame(&f) {}
    int64_t length() const { return frame->along[frame->axes - 1].count; }
    void next() {
        for (int64_t d = frame->axes - 2; d >= 0; --d) {
            const Along& a = frame->along[d];
            at += frame->apart[d], out += a.out;
            if (++index[d] < a.count) return;
            at -= a.count * frame->apart[d], out -= a.count * a.out, index[d] = 0;
        }
        at = INT64_MAX / 2;
    }
};

// The pixels among PANEL places from `q` on, of so many rows of sums, to where they belong; `row` goes on to the next ones.
PRISM_INLINE void v_pixels(bool fresh, float* c, int64_t cm, const float* sums, int64_t rows, int64_t q, Row& row) {
    for (; row.at < q + PANEL; row.next()) {
        const int64_t first = v_maxi(row.at, q), end = v_mini(row.at + row.length(), q + PANEL);
        for (int64_t i = first; i < end; i += VL) {
            auto some = [&](auto full, int64_t lanes) PRISM_BODY {
                const float* from = sums + i - q;
                float* to = c + row.out + i - row.at;
                for (int64_t m = 0; m < rows; ++m, from += PANEL, to += cm) {
                    const vf x = v_ld(full, from, lanes);
                    v_st(full, to, fresh ? x : v_ld(full, to, lanes) + x, lanes);
                }
            };
            if (end - i >= VL) some(Whole{}, VL);
            else some(Part{}, end - i);
        }
        if (row.at + row.length() > q + PANEL) return;
    }
}

// Of neighbours those at lanes low <= lane < high; the other lanes are zero, and not touched.
template <class X> PRISM_INLINE vf v_among(const X* p, int64_t low, int64_t high) {
#if PRISM_LANES == 16 && __has_builtin(__builtin_ia32_loadups512_mask)
    if constexpr (sizeof(X) == 4)
        return (vf)__builtin_ia32_loadups512_mask((const float*)p, vf{}, (unsigned short)((1u << high) - (1u << low)));
#endif
    X buffer[VL] = {};
    if (low < high) memcpy((void*)(buffer + low), (const void*)(p + low), (high - low) * sizeof(X));
    return v_load(buffer);
}
// The same of every other one.
template <class X, int... I> PRISM_INLINE vf v_evens(const X* p, int64_t low, int64_t high, std::integer_sequence<int, I...>) {
    const int64_t end = v_maxi(2 * low, 2 * high - 1);
    return PRISM_SHUFFLE(v_among(p, v_mini(VL, 2 * low), v_mini(VL, end)),
                         v_among(p + VL, v_maxi(0, 2 * low - VL), v_maxi(0, end - VL)), (2 * I)...);
}
// `lanes` of them from `p` on, `next` apart.
template <class X> PRISM_INLINE vf v_apart(const X* p, int64_t next, int64_t low, int64_t high) {
    if (next == 1) return v_among(p, low, high);
    if (next == 2) return v_evens(p, low, high, std::make_integer_sequence<int, VL>{});
    X buffer[VL] = {};
    for (int64_t l = low; l < high; ++l) buffer[l] = p[l * next];
    return v_load(buffer);
}

// Which places along each axis are inside, under the taps that there are.
struct Inside {
    int64_t low[MOST_ALONG] = {}, high[MOST_ALONG] = {};
    Inside(const Frame& f, const int64_t* taps, int64_t many) {
        for (int64_t d = 0; d < f.axes; ++d) {
            const Along& a = f.along[d];
            int64_t least = a.taps, most = 0;
            for (int64_t t = 0; t < many; ++t) {
                least = v_mini(least, taps[t * f.axes + d]);
                most = v_maxi(most, taps[t * f.axes + d]);
            }
            low[d] = v_maxi(a.low - a.first, least * a.dilation);
            high[d] = v_mini(a.high - a.first, (a.count - 1) * a.stride + most * a.dilation + 1);
        }
    }
};

// What all pixels see, k by k, phase by phase; 0 where nothing is.
template <class X>
PRISM_ALONE void pack_seen(float* __restrict to, const X* x, int64_t xk, const Frame& f, const Inside& within, int64_t K) {
    constexpr int64_t SOME = 16;  // how many k have a row in turn, whose place is worked out once for them
    const int64_t inner = f.axes - 1;
    const Along& last = f.along[inner];
    const int64_t length = last.length(), next = last.stride * last.step;
    for (int64_t begin = 0; begin < K; begin += SOME) {
        const int64_t stop = v_mini(K, begin + SOME);
        int64_t row = 0, phase[MOST_ALONG] = {}, place[MOST_ALONG] = {};
        for (bool more = true; more; row += length) {
            const X* from = x + begin * xk;
            bool inside = true;
            for (int64_t d = 0; d < f.axes; ++d) {
                const Along& a = f.along[d];
                const int64_t at = phase[d] * a.dilation % a.stride + (d == inner ? 0 : place[d] * a.stride);
                inside &= d == inner || (at >= within.low[d] && at < within.high[d]);
                from += at * a.step;
            }
            // Places of this row that are inside: those before `first` and from `end` on are not.
            const int64_t rest = phase[inner] * last.dilation % last.stride;
            const int64_t first = inside ? v_mini(length, v_cdiv(v_maxi(within.low[inner] - rest, 0), last.stride)) : length;
            const int64_t end =
                v_maxi(first, v_mini(length, v_cdiv(v_maxi(within.high[inner] - rest, 0), last.stride)));
            float* own = to + begin * f.pitch + row;
            // What a vector has behind the row's end the next row, or what follows the last one, is written over.
            for (int64_t i = 0; i < length; i += VL) {
                const int64_t low = v_mini(VL, v_maxi(0, first - i)), high = v_maxi(low, v_mini(VL, end - i));
                const X* p = from + i * next;
                if (next == 1 && high - low == VL)
                    for (int64_t k = begin; k < stop; ++k, p += xk) v_store(own + (k - begin) * f.pitch + i, v_load(p));
                else
                    for (int64_t k = begin; k < stop; ++k, p += xk)
                        v_store(own + (k - begin) * f.pitch + i, v_apart(p, next, low, high));
            }
            more = false;
            for (int64_t d = inner - 1; d >= 0 && !more; --d) {
                more = ++place[d] < f.along[d].length();
                if (!more) place[d] = 0;
            }
            for (int64_t d = inner; d >= 0 && !more; --d) {
                more = ++phase[d] < f.along[d].phases();
                if (!more) phase[d] = 0;
            }
        }
        for (int64_t k = begin; k < stop; ++k) v_fill(to + k * f.pitch + row, f.pitch - row, 0.0f);
    }
}

// What a window's weights are packed into, by row of them: tap by tap, and k by k of each. TILES: how many parts they have, 0
// where parts do not do, and their tiles; else panels of MR rows. `FINITE` says whether all of them are: one that is not
// would make something of the 0 outside of an image.
template <bool TILES> struct Weights {
    typedef float type;
    static constexpr int64_t KIND = TILES ? 7 : 8, FINITE = 1, AT = 16;
    const Frame& frame;
    bool halves;
    float* gathered;
    void mark(Panels& p) const {
        p.kind += halves ? 16 : 0;
        for (int64_t d = 0; d < frame.axes; ++d) {
            p.taps[2 * d] = frame.along[d].taps;
            p.taps[2 * d + 1] = frame.along[d].weight;
        }
    }
    int64_t room(int64_t K, int64_t M) const { return v_room_weights(K, M, frame.taps); }
    template <class W> void keep(float* to, const W* w, int64_t wk, int64_t wm, int64_t K, int64_t M) const {
        auto* own = (float*)malloc(M * frame.taps * v_deep(K) * sizeof(float));
        if (!own) abort();
        Weights{frame, halves, own}.pack(to, w, wk, wm, K, M);
        free(own);
    }
    template <class W> void pack(float* to, const W* w, int64_t wk, int64_t wm, int64_t K, int64_t M) const {
        const int64_t deep = TILES ? v_deep(K) : K, terms = frame.taps * deep;
        int64_t at[frame.taps];
        bool neighbours = true;
        for (int64_t t = 0; t < frame.taps; ++t) {
            at[t] = 0;
            for (int64_t d = frame.axes - 1, left = t; d >= 0; left /= frame.along[d--].taps)
                at[t] += left % frame.along[d].taps * frame.along[d].weight;
            neighbours &= at[t] == t;
        }
        vi wrong = {};
        const auto put = [&](auto full, float* row, vf x, int64_t lanes) PRISM_BODY {
            v_st(full, row, x, lanes);
            wrong |= (v_bits(x) & 0x7f800000) == 0x7f800000;
        };
        for (int64_t m = 0; m < M; ++m) {
            const W* from = w + m * wm;
            float* row = gathered + m * terms;
            int64_t k = 0;
            // Taps that are neighbours: some of them of VL k as a matrix, which is turned.
            for (; neighbours && wk != 1 && k + VL <= K; k += VL)
                for (int64_t t = 0; t < frame.taps; t += VL) {
                    const int64_t some = v_mini(VL, frame.taps - t);
                    vf rows[VL];
#pragma GCC unroll 16
                    for (int64_t i = 0; i < VL; ++i) rows[i] = v_ld(Part{}, from + (k + i) * wk + t, some);
                    v_transpose<VL>(rows);
                    for (int64_t i = 0; i < some; ++i) put(Whole{}, row + (t + i) * deep + k, rows[i], VL);
                }
            for (int64_t t = 0; t < frame.taps; ++t) {
                const W* own = from + at[t];
                auto some = [&](auto full, int64_t l, int64_t lanes) PRISM_BODY {
                    const vf x = wk == 1 ? v_ld(full, own + l, lanes) : v_gather(full, own + l * wk, wk, lanes);
                    put(full, row + t * deep + l, x, lanes);
                };
                int64_t l = k;
                for (; l + VL <= K; l += VL) some(Whole{}, l, VL);
                if (l < K) some(Part{}, l, K - l);
                v_fill(row + t * deep + K, deep - K, 0.0f);
            }
        }
        auto* head = (int32_t*)to;
        head[FINITE] = !v_any(wrong);
#if PRISM_PAIR_TILES
        if constexpr (TILES) {
            const Looked found = halves ? Looked{true, 1} : v_look(gathered, terms, 1, M, terms);
            head[0] = found.fits && head[FINITE] ? found.parts : 0;
            if (head[0]) pack_parts<true>((uint32_t*)to + AT, gathered, terms, 1, M, terms, head[0]);
            return;
        }
#endif
        pack_a<Single>(to + AT, gathered, terms, 1, M, terms);
    }
};

// MR rows of sums over PANEL places: terms are `pitch` apart in what is seen, and MR in the weights. ONE: there is one at
// each tap, so many taps that what comes with each of them would count.
template <bool ONE>
PRISM_ALONE void mul_seen(float* __restrict sums, const float* __restrict seen, int64_t pitch, const float* __restrict w,
                          const int64_t* shifts, const int64_t* weights, int64_t many, int64_t K) {
    vf s[MR][NR] = {};
    bool first = true;
    auto put = [&]() PRISM_BODY {
        for (int i = 0; i < MR; ++i)
            for (int j = 0; j < NR; ++j) {
                float* to = sums + i * PANEL + j * VL;
                v_store(to, first ? s[i][j] : v_load(to) + s[i][j]);
                s[i][j] = vf{};
            }
        first = false;
    };
    auto add = [&](const float* y, const float* a) PRISM_BODY {
        vf v[NR];
#pragma GCC unroll 8
        for (int j = 0; j < NR; ++j) v[j] = v_load(y + j * VL);
#pragma GCC unroll 16
        for (int i = 0; i < MR; ++i)
#pragma GCC unroll 8
            for (int j = 0; j < NR; ++j) s[i][j] += a[i] * v[j];
    };
    if constexpr (ONE) {
        for (int64_t t = 0; t < many || first; t += BLOCK) {
            for (int64_t u = t; u < v_mini(many, t + BLOCK); ++u) add(seen + shifts[u], w + weights[u] * MR);
            put();
        }
        return;
    }
    int64_t done = 0;
    for (int64_t t = 0; t < many; ++t)
        for (int64_t k = 0; k < K;) {
            const float* y = seen + shifts[t] + k * pitch;
            const float* a = w + (weights[t] * K + k) * MR;
            const int64_t stop = v_mini(K, k + BLOCK - done);
            done += stop - k;
            for (; k < stop; ++k, y += pitch, a += MR) add(y, a);
            if (done == BLOCK) {
                put();
                done = 0;
            }
        }
    if (done || first) put();
}

#if PRISM_PAIR_TILES
// 32 terms of what is seen as so many parts, all places of a part after those of the one before; whether any has a last
// part. `most`: the largest magnitude of each place, as bits.
template <int MANY> PRISM_ALONE bool split_seen(uint32_t* __restrict to, const float* __restrict seen, int64_t pitch, int32_t* most) {
    constexpr int32_t UPPER = (int32_t)0xffff0000;
    vi any = {};
    for (int64_t q = 0; q < pitch; q += VL) {
        vf one[TILE], other[TILE], both[TILE];
        vi largest = v_load(most + q);
#pragma GCC unroll 16
        for (int64_t i = 0; i < TILE; ++i) {
            one[i] = v_load(seen + 2 * i * pitch + q);
            other[i] = v_load(seen + (2 * i + 1) * pitch + q);
            const vi x = v_bits(one[i]) & 0x7fffffff, y = v_bits(other[i]) & 0x7fffffff;
            largest = v_sel(x > largest, x, largest);
            largest = v_sel(y > largest, y, largest);
        }
        v_store(most + q, largest);
        for (int part = 0; part < MANY; ++part) {
#pragma GCC unroll 16
            for (int64_t i = 0; i < TILE; ++i) {
                const vi x = v_bits(one[i]) + 0x8000, y = v_bits(other[i]) + 0x8000;
                one[i] -= v_float(x & UPPER), other[i] -= v_float(y & UPPER);
                both[i] = v_float((vi)((vu)x >> 16) | (y & UPPER));
            }
            if (part == PARTS - 1)
#pragma GCC unroll 16
                for (int64_t i = 0; i < TILE; ++i) any |= v_bits(both[i]);
            v_transpose<TILE>(both);
#pragma GCC unroll 16
            for (int64_t i = 0; i < TILE; ++i) v_store((float*)to + (part * pitch + q + i) * TILE, both[i]);
        }
    }
    return v_any(any != 0);
}
// All of it, as tiles take it; how many parts there are, 0 where parts do not do. In `block` there is room for 33 terms.
template <class X>
int seen_in_parts(uint32_t* to, float* block, const X* x, int64_t xk, const Frame& f, const Inside& within, int64_t K,
                  int parts) {
    auto* most = (int32_t*)(block + DEEP * f.pitch);
    memset(most, 0, f.pitch * sizeof(*most));
    bool last = false;
    for (int64_t k = 0; k < K; k += DEEP, to += parts * f.pitch * TILE) {
        const int64_t some = v_mini(DEEP, K - k);
        pack_seen(block, x + k * xk, xk, f, within, some);
        v_fill(block + some * f.pitch, (DEEP - some) * f.pitch, 0.0f);
        if (parts == PARTS) last |= split_seen<PARTS>(to, block, f.pitch, most);
        else split_seen<1>(to, block, f.pitch, most);
    }
    if (parts < PARTS) return parts;
    for (int64_t q = 0; q < f.pitch; ++q)
        if (most[q] && (most[q] < LEAST || most[q] >= MOST)) return 0;
    return last ? PARTS : PARTS - 1;
}
// A block of sums, 32 by 32, turned.
PRISM_ALONE inline void v_turn(float* __restrict to, const float* __restrict from) {
    for (int64_t i = 0; i < 2 * TILE; i += TILE)
        for (int64_t j = 0; j < PANEL; j += TILE) {
            vf rows[TILE];
#pragma GCC unroll 16
            for (int64_t l = 0; l < TILE; ++l) rows[l] = v_load(from + (i + l) * PANEL + j);
            v_transpose<TILE>(rows);
#pragma GCC unroll 16
            for (int64_t l = 0; l < TILE; ++l) v_store(to + (j + l) * PANEL + i, rows[l]);
        }
}
#endif

// By what the program says, one tap of one pixel after another: of weights that are not finite. So long a sum, term after
// term, is far less exact in float32 than one in registers' parts: this one is not about speed.
template <class X, class W>
PRISM_ALONE void mul_pixels(bool fresh, float* c, int64_t cm, const X* x, int64_t xk, const W* w, int64_t wm, int64_t wk,
                            const Frame& f, const int64_t* taps, int64_t many, int64_t M, int64_t K) {
    const int64_t inner = f.axes - 1;
    for (Row row(f); row.at < f.pixels; row.next())
        for (int64_t i = 0; i < row.length(); ++i)
            for (int64_t m = 0; m < M; ++m) {
                double sum = 0;
                for (int64_t t = 0; t < many; ++t) {
                    const X* from = x;
                    const W* by = w + m * wm;
                    bool inside = true;
                    for (int64_t d = 0; d < f.axes; ++d) {
                        const Along& a = f.along[d];
                        const int64_t tap = taps[t * f.axes + d];
                        const int64_t at = (d == inner ? i : row.index[d]) * a.stride + tap * a.dilation;
                        inside &= a.first + at >= a.low && a.first + at < a.high;
                        from += at * a.step;
                        by += tap * a.weight;
                    }
                    for (int64_t k = 0; inside && k < K; ++k) sum += (double)v_one(from + k * xk) * v_one(by + k * wk);
                }
                float* to = c + m * cm + row.out + i;
                *to = (fresh ? 0.0f : *to) + (float)sum;
            }
}

template <class X, class W>
void multiply_window(bool fresh, float* c, int64_t cm, const X* x, int64_t xk, const W* w, int64_t wm, int64_t wk,
                     const Along* along, int64_t axes, const int64_t* taps, int64_t many, int64_t M, int64_t K, bool halves,
                     float* pa, float* pb, Panels& last, int64_t uses, Seen* seen, int64_t turns) {
    const Frame f(along, axes);
    const Inside within(f, taps, many);
    int64_t shifts[many + 1], own[many + 1];
    // In the order of their weights, which are read once, from the first to the last.
    for (int64_t t = 0; t < many; ++t) {
        const int64_t shift = f.shift(taps + t * axes), weight = f.weights(taps + t * axes);
        int64_t at = t;
        for (; at && own[at - 1] > weight; --at) shifts[at] = shifts[at - 1], own[at] = own[at - 1];
        shifts[at] = shift, own[at] = weight;
    }
    float* gathered = pa + v_room_copies(f.pitch, K);
    Seen asked = {x, xk, K, axes};
    for (int64_t d = 0; d < axes; ++d) {
        asked.along[d] = along[d];
        asked.along[d].weight = asked.along[d].out = 0;
        asked.low[d] = within.low[d], asked.high[d] = within.high[d];
    }
    // What it sees is in `pa` from the call before, as the one or the other needs it.
    const auto again = [&](int64_t kind) PRISM_BODY {
        asked.at = pa, asked.kind = kind;
        const bool found = seen && seen->is(asked);
        if (found) asked.parts = seen->parts;
        return found;
    };
#if PRISM_PAIR_TILES
    // Tiles take 16 rows and 32 terms, whole or not; of few rows of few taps, taking apart what is seen takes longer than
    // tiles gain (multiply-adds for each value, measured).
    constexpr int64_t WORTH = 60;
    const bool pays = M * many * (seen ? turns : 1) >= WORTH;
    if (pays && 2 * M * K >= v_cdiv(M, TILE) * TILE * v_deep(K) && v_tiles()) {
        const Weights<true> how{f, halves, gathered};
        const float* second = v_panels(w, wk, wm, K, M, pb, last, uses, how);
        const int parts = *(const int32_t*)second;
        if (parts) {
            const int stored = halves ? 1 : PARTS;
            const int64_t depth = v_deep(K) / DEEP, step = stored * f.pitch * TILE;
            auto* y = (uint32_t*)pa;
            if (!again(how.KIND)) {
                asked.parts = seen_in_parts(y, pa + depth * step, x, xk, f, within, K, stored);
                if (seen) *seen = asked;
            }
            if (asked.parts) {
                const int64_t side = f.taps * depth * parts * SQUARE;
                const auto* panels = (const uint32_t*)second + Weights<true>::AT;
                alignas(64) float sums[2 * TILE * PANEL], turned[2 * TILE * PANEL];
                alignas(64) uint32_t spare[SQUARE];
                // Weights are asked for before they are multiplied: while the first places meet some rows of them, just
                // before, and while others do, those of the next rows, if the second cache holds both.
                const int64_t steps = many * depth, bytes = 2 * side * (int64_t)sizeof(uint32_t);
                const int64_t turns = v_cdiv(f.pixels, 2 * TILE) - 1;
                const int64_t some = turns ? v_cdiv(bytes, turns * steps) : 0;
                const bool both = 2 * bytes <= v_second_level();
                v_begin_tiles();
                for (int64_t m = 0; m < M; m += PANEL) {
                    Row row(f);
                    const auto* soon = (const char*)(panels + (m / TILE + 2) * side);
                    const char* const end = m + PANEL < M && both ? soon + bytes : soon;
                    for (int64_t q = 0; q < f.pixels; q += 2 * TILE) {
                        if (row.at >= q + PANEL) continue;
                        const bool two = f.pixels - q > TILE;
                        PRISM_TILE_ZERO(0);
                        PRISM_TILE_ZERO(1);
                        PRISM_TILE_ZERO(2);
                        PRISM_TILE_ZERO(3);
                        for (int64_t t = 0; t < many; ++t) {
                            const uint32_t* one = y + (shifts[t] + q) * TILE;
                            const uint32_t* other = panels + m / TILE * side + own[t] * depth * parts * SQUARE;
                            for (int64_t l = 0; l < depth; ++l) {
                                if (q == 0 || !both) {
                                    constexpr int64_t NEAR = 4;
                                    for (int64_t i = 0; i < parts * SQUARE; i += LINE / 4) {
                                        v_ask(other + NEAR * parts * SQUARE + i);
                                        v_ask(other + side + NEAR * parts * SQUARE + i);
                                    }
                                } else {
                                    for (int64_t i = 0; i < some && soon < end; i += LINE, soon += LINE) v_ask(soon);
                                }
                                v_add_parts(one, f.pitch * TILE, SQUARE, asked.parts, other, SQUARE, side, parts, two, spare);
                                one += step, other += parts * SQUARE;
                            }
                        }
                        PRISM_TILE_STORE(0, sums, PANEL);
                        PRISM_TILE_STORE(1, sums + TILE, PANEL);
                        PRISM_TILE_STORE(2, sums + TILE * PANEL, PANEL);
                        PRISM_TILE_STORE(3, sums + TILE * PANEL + TILE, PANEL);
                        v_turn(turned, sums);
                        v_pixels(fresh, c + m * cm, cm, turned, v_mini(PANEL, M - m), q, row);
                    }
                }
                v_end_tiles();
                return;
            }
        }
    }
#endif
    const Weights<false> how{f, false, gathered};
    const float* second = v_panels(w, wk, wm, K, M, pb, last, uses, how);
    if (!((const int32_t*)second)[how.FINITE])
        return mul_pixels(fresh, c, cm, x, xk, w, wm, wk, f, taps, many, M, K);
    if (!again(how.KIND)) {
        pack_seen(pa, x, xk, f, within, K);
        if (seen) *seen = asked;
    }
    // Few terms at many taps are so many taps of one.
    constexpr int64_t NARROW = 16;
    const bool narrow = K < NARROW;
    int64_t places[narrow ? many * K + 1 : 1], panels[narrow ? many * K + 1 : 1];
    for (int64_t t = 0; narrow && t < many; ++t)
        for (int64_t k = 0; k < K; ++k) {
            places[t * K + k] = shifts[t] + k * f.pitch;
            panels[t * K + k] = own[t] * K + k;
        }
    alignas(64) float sums[MR * PANEL];
    Row start(f);
    for (int64_t q = 0; q < f.pixels; q += PANEL) {
        if (start.at >= q + PANEL) continue;
        Row row = start;
        for (int64_t m = 0; m < M; m += MR) {
            row = start;
            const float* rows = second + how.AT + m * f.taps * K;
            if (narrow) mul_seen<true>(sums, pa + q, f.pitch, rows, places, panels, many * K, 1);
            else mul_seen<false>(sums, pa + q, f.pitch, rows, shifts, own, many, K);
            v_pixels(fresh, c + m * cm, cm, sums, v_mini(MR, M - m), q, row);
        }
        start = row;
    }
}
}  // namespace prism
