// Tiles of 16 rows of 64 bytes, which the processor multiplies (AMX): of `a` 16 rows and 16 places, of a panel 16 places and
// 16 columns, of `c` 16 rows and 16 columns; a place is 4 bytes, some neighbours along k.
#if defined(__AMX_TILE__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define PRISM_TILES 1
namespace prism __attribute__((visibility("hidden"))) {
constexpr int64_t TILE = 16;
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
}  // namespace prism
#else
#define PRISM_TILES 0
#endif
