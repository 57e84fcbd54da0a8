// What launches know of matrix products: each is a function of its own, which is compiled once for all tiles and launches
// (`product.hpp` and its like), c[m][n] += sum_k a[m][k] * b[k][n], or = where c is fresh and holds nothing yet.
#ifdef __linux__
#include <sys/mman.h>
#endif
namespace prism __attribute__((visibility("hidden"))) {
constexpr int64_t LINE = 64;
constexpr int64_t MOST_ALONG = 6;  // axes of a window

// What an operand was packed into, of so many terms and columns, and the kind of panels.
struct Panels {
    const void* b;
    int64_t bk, bn, K, N, kind;
    const void* at;  // null: it is not held
    Panels* next;
    int64_t taps[2 * MOST_ALONG];  // of a window's weights
    bool is(const Panels& p) const {
        return b == p.b && bk == p.bk && bn == p.bn && K == p.K && N == p.N && kind == p.kind &&
               !memcmp(taps, p.taps, sizeof(taps));
    }
    uint64_t hash() const {
        const uint64_t x = (uint64_t)b / LINE + (uint64_t)(K * 31 + N) * 0x9e3779b97f4a7c15u;
        return (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u >> 40;
    }
};
// c and a are float32; b is as it is stored. In pa and pb there is room for `v_room_a` and `v_room_b` numbers.
// `last` is what pb holds of operands that stay as they are while a launch runs; of such a b, `uses` is by how many products
// it is read then, of any other 0.
template <class B>
void multiply(bool fresh, float* c, int64_t cm, const float* a, int64_t am, int64_t ak, const B* b, int64_t bk,
              int64_t bn, int64_t M, int64_t K, int64_t N, float* pa, float* pb, Panels& last, int64_t uses);
// The same of two operands that may be rounded to bfloat16; a is float32, or as it is stored.
template <class B, class A = float>
void multiply_halves(bool fresh, float* c, int64_t cm, const A* a, int64_t am, int64_t ak, const B* b, int64_t bk,
                     int64_t bn, int64_t M, int64_t K, int64_t N, float* pa, float* pb, Panels& last, int64_t uses);
// A byte that is a whole number in float32.
template <class T> struct Level {
    float x;
};
typedef Level<int8_t> level_int8_t;
typedef Level<uint8_t> level_uint8_t;
// Of bytes, plus sa and sb each, in int32.
template <class A, class B>
void multiply_bytes(bool fresh, int32_t* c, int64_t cm, const A* a, int64_t am, int64_t ak, const B* b, int64_t bk,
                    int64_t bn, int64_t M, int64_t K, int64_t N, float* pa, float* pb, Panels& last, int64_t uses,
                    int32_t sa, int32_t sb);
// An axis of a window: pixel i under tap t is at place `first + i * stride + t * dilation`, and places are `step` elements
// apart. Outside of low <= place < high a tap adds nothing. There are `count` pixels and `taps` taps; neighbouring taps'
// weights are `weight` elements apart, neighbouring pixels of the result `out`, 1 along the last axis.
struct Along {
    int64_t count, stride, dilation, taps, step, first, low, high, weight, out;
    // Pixels at a stride see places in turn: those of one remainder by the stride are a phase.
    static constexpr int64_t common(int64_t a, int64_t b) { return b ? common(b, a % b) : a; }
    constexpr int64_t period() const { return stride / common(stride, dilation); }
    constexpr int64_t phases() const { return period() < taps ? period() : taps; }
    constexpr int64_t length() const { return count + dilation * (taps - 1) / stride; }
    constexpr int64_t room() const { return phases() * length(); }
};
// What a window saw, and the copy that was made of it.
struct Seen {
    const void* x;
    int64_t xk, K, axes;
    Along along[MOST_ALONG];  // neither weights nor results
    int64_t low[MOST_ALONG], high[MOST_ALONG];
    const void* at;
    int64_t kind;
    int parts;
    bool is(const Seen& s) const { return !memcmp(this, &s, __builtin_offsetof(Seen, parts)); }
};
// What a thread has packed while a launch runs, of memory that stays as it is: a second factor, and what windows see.
struct Packed : Panels {
    Seen seen[2];
};
// c[m][pixels] += sum over taps and k of w[m][tap][k] * x[k][pixels and tap], of as many `taps` as are given, one number for
// each axis. `halves` says that both may be rounded to bfloat16. `seen`: what `pa` holds,
// of an x that stays as it is while a launch runs; null for any other. `turns`: how many calls in turn see the same.
template <class X, class W>
void multiply_window(bool fresh, float* c, int64_t cm, const X* x, int64_t xk, const W* w, int64_t wm, int64_t wk,
                     const Along* along, int64_t axes, const int64_t* taps, int64_t many, int64_t M, int64_t K, bool halves,
                     float* pa, float* pb, Panels& last, int64_t uses, Seen* seen, int64_t turns);

#if PRISM_LANES == 16
constexpr int64_t MR = 8, NR = 2;
#elif PRISM_LANES == 8
constexpr int64_t MR = 6, NR = 2;
#else
constexpr int64_t MR = 4, NR = 2;
#endif
constexpr int64_t PANEL = NR * VL;
constexpr int64_t v_packed_a(int64_t M, int64_t K) { return (M + MR - 1) / MR * MR * K; }
constexpr int64_t v_packed_b(int64_t N, int64_t K) { return (N + PANEL - 1) / PANEL * PANEL * K; }
constexpr int64_t TILE = 16;  // rows of a tile (AMX), and places of 4 bytes along k
#if PRISM_PAIRS && defined(__AMX_BF16__) && defined(__AMX_TILE__) && defined(__linux__)
#define PRISM_PAIR_TILES 1
constexpr int64_t PARTS = 3;      // bfloat16 values that a float32 one is the sum of
constexpr int64_t PARTS_AT = 16;  // where their tiles begin in what a second factor is packed into
// Of rows, two tiles at a time, or columns: all parts of each.
constexpr int64_t v_parts_room(int64_t rows, int64_t terms) {
    return (rows + 2 * TILE - 1) / (2 * TILE) * 2 * ((terms + 2 * TILE - 1) / (2 * TILE)) * PARTS * TILE * TILE;
}
constexpr int64_t v_room_a(int64_t M, int64_t K) { return v_parts_room(M, K); }
constexpr int64_t v_room_b(int64_t N, int64_t K) { return PARTS_AT + v_parts_room(N, K); }
#else
#define PRISM_PAIR_TILES 0
constexpr int64_t v_room_a(int64_t M, int64_t K) { return v_packed_a(M, K); }
constexpr int64_t v_room_b(int64_t N, int64_t K) { return v_packed_b(N, K); }
#endif
constexpr int64_t v_deep(int64_t K) { return PRISM_PAIR_TILES ? (K + 2 * TILE - 1) / (2 * TILE) * (2 * TILE) : K; }
// Elements from one k to the next of what a window sees: not so many that neighbours share a set of a cache.
constexpr int64_t v_pitch(int64_t places) {
    const int64_t p = (places + PANEL + VL - 1) / VL * VL;
    return p % 256 ? p : p + VL;
}
// Rooms of a window that sees so many places, and of its weights: copies of float32 numbers or of their parts, the first 32
// terms of which are copied before, and weights as they are gathered.
constexpr int64_t v_room_copies(int64_t pitch, int64_t K) {
    return (PRISM_PAIR_TILES ? v_maxi(K, v_deep(K) / 2 * 3 + 2 * TILE + 1) : K) * pitch + VL;
}
constexpr int64_t v_room_seen(int64_t places, int64_t K, int64_t M, int64_t taps) {
    return v_room_copies(v_pitch(places), K) + M * taps * v_deep(K);
}
constexpr int64_t v_room_weights(int64_t K, int64_t M, int64_t taps) {
    return v_maxi(v_room_b(M, taps * v_deep(K)), v_packed_a(M, taps * K)) + TILE;
}

// Memory in large pages, where the system has them: of panels that no cache holds, translating addresses of small ones takes
// longer than the memory does (30 MB and more, measured).
struct Chunk {
    static constexpr int64_t PAGES = 2 << 20, LEAST = 4 << 20, MOST = 64 << 20;
    char* at;
    int64_t size, used, live;  // bytes, and how many pieces are not given back
    Chunk* next;
};
// Memory that stays as it is, a model's weights: panels of operands that lie in it are made once, and kept until it is
// forgotten. Of this library alone, so no other version's.
struct Held {
    static constexpr int64_t BUCKETS = 1024;
    struct Range {
        const char *first, *last;
        Range* next;
    };
    bool taken;
    int64_t changes;  // 0: nothing was ever held
    Range* ranges;
    Panels* buckets[BUCKETS];
    Chunk* chunks;
};
inline Held held;
struct Turn {
    Turn() {
        while (__atomic_test_and_set(&held.taken, __ATOMIC_ACQUIRE)) {}
    }
    ~Turn() { __atomic_clear(&held.taken, __ATOMIC_RELEASE); }
};
// So many bytes, by who has the turn; null where there are none.
static void* v_keep(int64_t bytes) {
    bytes = (bytes + LINE - 1) / LINE * LINE;
    Chunk* found = held.chunks;
    while (found && found->size - found->used < bytes) found = found->next;
    if (!found) {
        const int64_t more = held.chunks ? v_mini(2 * held.chunks->size, Chunk::MOST) : Chunk::LEAST;
        const int64_t size = (v_maxi(bytes, more) + Chunk::PAGES - 1) / Chunk::PAGES * Chunk::PAGES;
        found = (Chunk*)malloc(sizeof(Chunk));
        auto* at = (char*)aligned_alloc(Chunk::PAGES, size);
        if (!found || !at) {
            free(found);
            free(at);
            return nullptr;
        }
#ifdef __linux__
        madvise(at, size, MADV_HUGEPAGE);
#endif
        *found = {at, size, 0, 0, held.chunks};
        held.chunks = found;
    }
    char* at = found->at + found->used;
    found->used += bytes;
    ++found->live;
    return at;
}
static void v_drop(const void* piece) {
    for (Chunk** at = &held.chunks; *at; at = &(*at)->next) {
        Chunk* c = *at;
        if ((const char*)piece < c->at || (const char*)piece >= c->at + c->size) continue;
        if (--c->live) return;
        *at = c->next;
        free(c->at);
        free(c);
        return;
    }
}
static void v_forget(const void* first) {
    Turn turn;
    for (Held::Range** at = &held.ranges; *at;) {
        Held::Range* r = *at;
        if (r->first != first) {
            at = &r->next;
            continue;
        }
        for (Panels*& bucket : held.buckets)
            for (Panels** p = &bucket; *p;) {
                Panels* found = *p;
                if ((const char*)found->b < r->first || (const char*)found->b >= r->last) {
                    p = &found->next;
                    continue;
                }
                *p = found->next;
                v_drop(found->at);
                free(found);
            }
        *at = r->next;
        free(r);
    }
    __atomic_add_fetch(&held.changes, 1, __ATOMIC_RELEASE);
}
static void v_hold(const void* first, int64_t bytes) {
    v_forget(first);
    Turn turn;
    auto* r = (Held::Range*)malloc(sizeof(Held::Range));
    if (!r) return;
    *r = {(const char*)first, (const char*)first + bytes, held.ranges};
    held.ranges = r;
    __atomic_add_fetch(&held.changes, 1, __ATOMIC_RELEASE);
}
}  // namespace prism
