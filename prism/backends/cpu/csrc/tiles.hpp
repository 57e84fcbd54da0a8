// Tiles of 16 rows of 64 bytes, which the processor multiplies (AMX): of `a` 16 rows and 16 places, of a panel 16 places and
// 16 columns, of `c` 16 rows and 16 columns; a place is 4 bytes, some neighbours along k.
#if defined(__AMX_TILE__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define PRISM_TILES 1
namespace prism __attribute__((visibility("hidden"))) {
#define PRISM_TILE_ROWS(T, FROM, BYTES) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #T : : "r"(FROM), "r"((int64_t)(BYTES)) : "memory")
#define PRISM_TILE_LOAD(T, FROM, STEP) PRISM_TILE_ROWS(T, FROM, 4 * (STEP))
#define PRISM_TILE_STORE(T, TO, STEP) \
    __asm__ volatile("tilestored %%tmm" #T ", (%0,%1,1)" : : "r"(TO), "r"((int64_t)(STEP) * 4) : "memory")
#define PRISM_TILE_ZERO(T) __asm__ volatile("tilezero %%tmm" #T : :)
#define PRISM_TILE_ADD(HOW, C, A, B) __asm__ volatile(HOW " %%tmm" #B ", %%tmm" #A ", %%tmm" #C : :)

// Whether the kernel lets this process use them: it is asked once.
inline bool v_tiles() {
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18;
    static const bool allowed = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
    return allowed;
}
struct TileShapes {
    uint8_t palette = 1, rest[15] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
PRISM_INLINE void v_begin_tiles() {
    const TileShapes shapes;
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}
PRISM_INLINE void v_end_tiles() { __asm__ volatile("tilerelease" : :); }
// The last places of a panel with zeros after them, as a tile has no fewer.
PRISM_INLINE void v_last_tile(uint32_t* to, const uint32_t* from, int64_t places) {
    memcpy(to, from, places * PANEL * sizeof(uint32_t));
    memset(to + places * PANEL, 0, (TILE - places) * PANEL * sizeof(uint32_t));
}
#if PRISM_PAIR_TILES
// c by two tiles of rows (or one, where there are no more) and two of columns in turn, in registers 0 to 3; some of the
// depth, in places, at a time. `panel(k, end, n)` gives what adds to them for rows `m` of a panel of columns: `add(m, two)`.
template <class P>
PRISM_INLINE void v_by_tiles(bool fresh, float* __restrict c, int64_t cm, int64_t M, int64_t depth, int64_t N, P panel) {
    static_assert(PANEL == 2 * TILE, "two tiles are as wide as a panel");
    // What is loaded and stored of c between parts of the depth counts more than for vectors.
    constexpr int64_t STEP = BLOCK;
    v_begin_tiles();
    for (int64_t k = 0; k < depth; k += STEP) {
        const int64_t end = v_mini(k + STEP, depth);
        const bool set = fresh && k == 0;
        for (int64_t first = 0; first < M; first += TALL)
            for (int64_t n = 0; n < N; n += PANEL) {
                const auto add = panel(k, end, n);
                const int64_t left = v_mini(PANEL, N - n);
                for (int64_t m = first; m < v_mini(M, first + TALL); m += 2 * TILE) {
                    const int64_t rows = v_mini(2 * TILE, M - m);
                    const bool two = rows > TILE, inside = left == PANEL && rows % TILE == 0;
                    float edge[2 * TILE * PANEL];
                    float* to = inside ? c + m * cm + n : edge;
                    const int64_t step = inside ? cm : PANEL;
                    if (!inside && !set)
                        for (int64_t i = 0; i < rows; ++i)
                            memcpy(edge + i * PANEL, c + (m + i) * cm + n, left * sizeof(float));
                    if (set) {
                        PRISM_TILE_ZERO(0);
                        PRISM_TILE_ZERO(1);
                        PRISM_TILE_ZERO(2);
                        PRISM_TILE_ZERO(3);
                    } else {
                        PRISM_TILE_LOAD(0, to, step);
                        PRISM_TILE_LOAD(1, to + TILE, step);
                        if (two) {
                            PRISM_TILE_LOAD(2, to + TILE * step, step);
                            PRISM_TILE_LOAD(3, to + TILE * step + TILE, step);
                        }
                    }
                    add(m, two);
                    PRISM_TILE_STORE(0, to, step);
                    PRISM_TILE_STORE(1, to + TILE, step);
                    if (two) {
                        PRISM_TILE_STORE(2, to + TILE * step, step);
                        PRISM_TILE_STORE(3, to + TILE * step + TILE, step);
                    }
                    if (!inside)
                        for (int64_t i = 0; i < rows; ++i)
                            memcpy(c + (m + i) * cm + n, edge + i * PANEL, left * sizeof(float));
                }
            }
    }
    v_end_tiles();
}
// Two by two of them, or one by two: of the first factor in 4 and 5, of the second one in 6 and 7.
#define PRISM_TILE_PAIRS(TWO)                     \
    do {                                          \
        PRISM_TILE_ADD("tdpbf16ps", 0, 4, 6);     \
        PRISM_TILE_ADD("tdpbf16ps", 1, 4, 7);     \
        if (TWO) {                                \
            PRISM_TILE_ADD("tdpbf16ps", 2, 5, 6); \
            PRISM_TILE_ADD("tdpbf16ps", 3, 5, 7); \
        }                                         \
    } while (0)
#endif
}  // namespace prism
#else
#define PRISM_TILES 0
#endif
