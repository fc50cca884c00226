/* SPDX-License-Identifier: Apache-2.0
 * Products with weights of four bits whose inputs were rounded to bytes, a scale for each block (contract: pysim_few_bits, native/abi/operators.h). Included by
 * loops.c for floats after few_bits.h. Sums of a block are exact, and multiplied by both scales once; blocks are added in order, whatever the tile.
 *
 * Of the eight k of a word the even ones are its bytes' lower halves and the odd ones the upper halves: so are the bytes of the inputs ordered. */

/* Rows of x as bytes, with a scale and a sum for each block. A block with a number that is not finite has the scale NaN. */
static void round_blocks(const pysim_few_bits *b, const void *from, const pysim_few_bytes *to) {
    const T *x = from;
    const int64_t blocks = pysim_ceil_div(b->k, b->block);
    for (int64_t i = 0; i < b->rows * blocks; i++) {
        const int64_t k = i % blocks * b->block, size = pysim_min(b->block, b->k - k), at = i / blocks * b->k + k;
        const T *const restrict own = x + at;
        int8_t *const restrict bytes = to->bytes + at;
        T most = 0, total = 0;
        int32_t sum = 0;
        for (int64_t j = 0; j < size; j++) {
            const T size_of = own[j] < 0 ? -own[j] : own[j];
            most = size_of > most ? size_of : most;
            total += own[j] * 0; /* NaN of what is not finite */
        }
        const int finite = total == 0 && most < __builtin_inff();
        const T by = finite && most >= 0x1p-120f ? 127 / most : 0;
        for (int64_t j = 0; j < size; j++) {
            const int32_t whole = finite ? (int32_t)((own[j] * by + 12582912.0f) - 12582912.0f) : 0;
            bytes[j / PYSIM_NIBBLES * PYSIM_NIBBLES + j % 2 * (PYSIM_NIBBLES / 2) + j % PYSIM_NIBBLES / 2] = (int8_t)whole;
            sum += whole;
        }
        to->scales[i] = finite ? most / 127 : __builtin_nanf("");
        to->sums[i] = sum;
    }
}

#ifdef __AVX512F__
enum { BYTES_ROWS = 6, BYTES_PANELS = 2 };
#define VNNI __attribute__((target("avx512vnni")))

INLINE VNNI __m512i four_bytes(const int8_t *p) {
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
}

/* `rows` rows of `panels` panels, the first of which begins at column n. */
INLINE VNNI void few_bytes_tile(const int rows, const int panels, const int has_zeros, const pysim_few_bits *b, int64_t n, int64_t first,
                                const pysim_few_bytes *x, const char *panel, T *y) {
    const int64_t each = pysim_few_bits_block_bytes(b), blocks = pysim_ceil_div(b->k, b->block), next = each * blocks;
    const __m512i low = _mm512_set1_epi8(15);
    VEC sum[BYTES_ROWS][BYTES_PANELS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++)
            sum[r][p] = b->bias ? v_load_mask((const T *)b->bias + n + p * LANES, v_lanes(0, b->columns - n - p * LANES)) : v_zero();
    for (int64_t block = 0; block < blocks; block++, panel += each) {
        const int64_t k = block * b->block, size = pysim_min(b->block, b->k - k);
        const int8_t *bytes = x->bytes + first * b->k + k;
        __m512i own[BYTES_ROWS][BYTES_PANELS];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int p = 0; p < panels; p++) own[r][p] = _mm512_set1_epi32(-8 * x->sums[(first + r) * blocks + block]);
        for (int64_t j = 0; j < size; j += PYSIM_NIBBLES) {
            __m512i even[BYTES_PANELS], odd[BYTES_PANELS];
#pragma GCC unroll 2
            for (int p = 0; p < panels; p++) {
                const char *words = panel + p * next + (has_zeros ? 2 : 1) * PYSIM_PANEL * (int64_t)sizeof(T) +
                                    j / PYSIM_NIBBLES * PYSIM_PANEL * (int64_t)sizeof(uint32_t);
                const __m512i word = _mm512_loadu_si512(words);
                __builtin_prefetch(words + BITS_AHEAD);
                even[p] = _mm512_and_si512(word, low), odd[p] = _mm512_and_si512(_mm512_srli_epi32(word, 4), low);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const __m512i first_four = four_bytes(bytes + r * b->k + j), last_four = four_bytes(bytes + r * b->k + j + 4);
#pragma GCC unroll 2
                for (int p = 0; p < panels; p++)
                    own[r][p] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(own[r][p], even[p], first_four), odd[p], last_four);
            }
        }
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) {
            const T *head = (const T *)(const void *)(panel + p * next);
            const VEC scale = v_load(head), zero = has_zeros ? v_load(head + PYSIM_PANEL) : v_zero();
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const int64_t at = (first + r) * blocks + block;
                VEC total = _mm512_cvtepi32_ps(own[r][p]);
                if (has_zeros) total = total - zero * v_set1((T)x->sums[at]);
                sum[r][p] = v_fma(total, scale * v_set1(x->scales[at]), sum[r][p]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++) {
            const int64_t left = b->columns - n - p * LANES;
            T *to = y + (first + r) * b->columns + n + p * LANES;
            if (left >= LANES) v_store(to, sum[r][p]);
            else if (left > 0) v_store_mask(to, sum[r][p], v_lanes(0, left));
        }
}

#define BYTES_TILES(count, panels)                                                \
    for (; r + (count) <= b->rows; r += (count))                                  \
        if (b->has_zeros) few_bytes_tile(count, panels, 1, b, n, r, x, panel, y); \
        else few_bytes_tile(count, panels, 0, b, n, r, x, panel, y)

static VNNI void few_bytes_by_products(const pysim_few_bits *b, int64_t begin, int64_t end, const pysim_few_bytes *x, const char *weights,
                                       T *y) {
    const int64_t bytes = pysim_few_bits_block_bytes(b) * pysim_ceil_div(b->k, b->block);
    for (int64_t p = begin; p < end; p += BYTES_PANELS) {
        const char *panel = weights + p * bytes;
        int64_t n = p * PYSIM_PANEL, r = 0;
        if (p + BYTES_PANELS <= end) {
            BYTES_TILES(BYTES_ROWS, BYTES_PANELS);
            BYTES_TILES(1, BYTES_PANELS);
        } else {
            BYTES_TILES(1, 1);
        }
    }
}
#endif

/* Panels begin..end of all rows; whether this CPU has the instructions. */
static int few_bytes_panels(const pysim_few_bits *b, int64_t begin, int64_t end, const pysim_few_bytes *x, const void *weights, void *y) {
#ifdef __AVX512F__
    if (__builtin_cpu_supports("avx512vnni")) {
        if (begin < end) few_bytes_by_products(b, begin, end, x, weights, y);
        return 1;
    }
#endif
    (void)b, (void)begin, (void)end, (void)x, (void)weights, (void)y;
    return 0;
}
