/* SPDX-License-Identifier: Apache-2.0
 * Operations on the eight tiles of AMX, registers of 16 rows of 64 bytes: by its instructions, or with EMULATED by portable C that computes the
 * same bits on any CPU. A function declares TILES before it uses any; tile numbers are constants.
 *
 *   tile_zero(t)  tile_load(t, from, pitch)  tile_store(t, to, pitch)      rows lie `pitch` bytes apart
 *   tile_pass(t, from, pitch)             tile_load of what comes from L2 and need not stay in L1
 *   tile_bf16(c, a, b)                    c[m][n] += sum over p < 16, q < 2 of a[m][2p + q] b[p][2n + q]; c is FP32
 *   tile_ss, tile_su, tile_us(c, a, b)    the same with q < 4 of bytes, INT32 modulo 2^32; s signed, u unsigned: first a, then b
 *
 * As documented (Intel, Software Developer's Manual, TDPBF16PS): the products of even and of odd k are each a chain of multiply-adds in the order of
 * p, from 0; the two are added, and then their sum to c. Each is rounded to nearest even. Subnormal operands and results are zeros of their sign.
 * Nothing raises an exception or obeys MXCSR. */
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
enum { TILE_ROWS = 16, TILE_ROW_BYTES = 64 };

#ifdef EMULATED
#include <math.h>

typedef union {
    float sums[TILE_ROWS][16];
    uint16_t halves[TILE_ROWS][32];
    uint8_t bytes[TILE_ROWS][TILE_ROW_BYTES];
    int32_t integers[TILE_ROWS][16];
} tile;

/* These touch tiles alone, and checks of each access would take most of the time; loads and stores of tiles are checked. */
#define UNCHECKED __attribute__((no_sanitize_address, no_sanitize_undefined))

/* x, or a zero of its sign where it is subnormal. */
UNCHECKED INLINE float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }

UNCHECKED INLINE float half_value(uint16_t bits) {
    const uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return flushed(x);
}

UNCHECKED static inline void emulate_bf16(tile *c, const tile *a, const tile *b) {
    for (int m = 0; m < TILE_ROWS; m++) {
        float even[16] = {0}, odd[16] = {0};
        for (int p = 0; p < 16; p++) {
            const float x0 = half_value(a->halves[m][2 * p]), x1 = half_value(a->halves[m][2 * p + 1]);
            for (int n = 0; n < 16; n++) {
                even[n] = flushed(__builtin_fmaf(x0, half_value(b->halves[p][2 * n]), even[n]));
                odd[n] = flushed(__builtin_fmaf(x1, half_value(b->halves[p][2 * n + 1]), odd[n]));
            }
        }
        for (int n = 0; n < 16; n++) c->sums[m][n] = flushed(flushed(c->sums[m][n]) + flushed(even[n] + odd[n]));
    }
}

UNCHECKED static inline void emulate_bytes(tile *c, const tile *a, const tile *b, const int a_signed, const int b_signed) {
    for (int m = 0; m < TILE_ROWS; m++)
        for (int p = 0; p < 16; p++)
            for (int n = 0; n < 16; n++) {
                int32_t sum = 0;
                for (int q = 0; q < 4; q++) {
                    const uint8_t x = a->bytes[m][4 * p + q], y = b->bytes[p][4 * n + q];
                    sum += (a_signed ? (int8_t)x : x) * (b_signed ? (int8_t)y : y);
                }
                c->integers[m][n] = (int32_t)((uint32_t)c->integers[m][n] + (uint32_t)sum);
            }
}

static inline void emulate_load(tile *t, const void *from, int64_t pitch) {
    for (int i = 0; i < TILE_ROWS; i++) memcpy(t->bytes[i], (const char *)from + i * pitch, TILE_ROW_BYTES);
}

static inline void emulate_store(const tile *t, void *to, int64_t pitch) {
    for (int i = 0; i < TILE_ROWS; i++) memcpy((char *)to + i * pitch, t->bytes[i], TILE_ROW_BYTES);
}

#define TILES tile tiles[8]
#define tile_zero(t) memset(&tiles[t], 0, sizeof tiles[t])
#define tile_load(t, from, pitch) emulate_load(&tiles[t], from, pitch)
#define tile_pass(t, from, pitch) tile_load(t, from, pitch)
#define tile_store(t, to, pitch) emulate_store(&tiles[t], to, pitch)
#define tile_bf16(c, a, b) emulate_bf16(&tiles[c], &tiles[a], &tiles[b])
#define tile_ss(c, a, b) emulate_bytes(&tiles[c], &tiles[a], &tiles[b], 1, 1)
#define tile_su(c, a, b) emulate_bytes(&tiles[c], &tiles[a], &tiles[b], 1, 0)
#define tile_us(c, a, b) emulate_bytes(&tiles[c], &tiles[a], &tiles[b], 0, 1)
#else
#include <immintrin.h>

/* Compilers order these instructions among each other, but not among other accesses of memory. */
#define TILES __asm__ volatile("" ::: "memory")
#define tile_zero(t) _tile_zero(t)
#define tile_load(t, from, pitch) _tile_loadd(t, from, pitch)
#define tile_pass(t, from, pitch) _tile_stream_loadd(t, from, pitch)
#define tile_store(t, to, pitch)           \
    do {                                   \
        _tile_stored(t, to, pitch);        \
        __asm__ volatile("" ::: "memory"); \
    } while (0)
#define tile_bf16(c, a, b) _tile_dpbf16ps(c, a, b)
#define tile_ss(c, a, b) _tile_dpbssd(c, a, b)
#define tile_su(c, a, b) _tile_dpbsud(c, a, b)
#define tile_us(c, a, b) _tile_dpbusd(c, a, b)

/* All eight tiles whole. Other code of this thread may have other tiles, so each run configures its own, and gives them back: the system saves
 * tiles in use at every switch. */
INLINE void tiles_configure(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } whole = {.palette = 1};
    for (int i = 0; i < 8; i++) whole.row_bytes[i] = TILE_ROW_BYTES, whole.rows[i] = TILE_ROWS;
    __asm__ volatile("" ::"r"(&whole) : "memory"); /* GCC's intrinsic names the first 8 bytes alone as read */
    _tile_loadconfig(&whole);
}
INLINE void tiles_release(void) { _tile_release(); }
#endif
