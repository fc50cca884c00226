/* SPDX-License-Identifier: Apache-2.0
 * Form `bounded` (contract: native/kernel.h): products of two groups are added in 16 bits before they are widened, five instructions for 64
 * products, where exact pairs take eight.
 *
 * vpmaddubsw saturates and sums of 16 bits wrap. Both are exact if in each half of a group (two of its bytes), over two neighbouring groups,
 * weights of one sign add up to at most 128: 255 * 128 = 32,640. Preparing takes off what is beyond, and lists it:
 *
 *   panel  [groups][FILTERS] words of 4 weights, bounded
 *   lists  of FOUR filters each: entries of the filter with most, which is every filter's number, then [entry][FOUR] (group, 4 weights)
 *
 * The bytes of a listed group are multiplied once more; zeros fill shorter lists up, since a loop of one length is cheaper than four. If a list
 * has no room, its number is UNLISTED, and weights stay as they are: they are split into elements of even and odd k, 16 instructions instead of
 * five. */
enum { FILTERS = 12, FOUR = 4, VECTORS = 2, MOST = 128, SIGNS = 2, HALVES_OF_GROUP = 2, LIST_BYTES = 2 };
#define UNLISTED UINT32_MAX

typedef struct {
    uint32_t group, weights;
} excess;

typedef struct {
    uint32_t count, unused[7];
    excess entries[][FOUR];
} excess_list;

/* The list of filters from `four` FOURs on, behind a panel of so many groups; it has LIST_BYTES for each weight. */
INLINE const excess_list *list_of(const void *panel, int64_t groups, int64_t four) {
    return (const excess_list *)(const void *)((const char *)panel + groups * GROUP * (FILTERS + four * FOUR * LIST_BYTES));
}

/* ---- products ---- */

static const int16_t ones[16] __attribute__((aligned(32))) = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

INLINE SUMS s_one_group(SUMS sum, WORDS x, WORDS y) {
    return s_add(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(x, y), w_load((const uint32_t *)(const void *)ones)));
}

/* A filter's words at f and in the next group, times bytes x and next: a and b += x[0] f + next[0] f', x[1] f + next[1] f'. In C, GCC spills
 * sums: 29 products a cycle instead of 38 (Zen 3). */
#define LOAD_FILTER "vpbroadcastd %[f], %%ymm12\n\tvpbroadcastd %[f2], %%ymm13\n\t"
#define ADD_PRODUCTS(sum, x, next)                 \
    "vpmaddubsw %%ymm12, %[" x "], %%ymm14\n\t"    \
    "vpmaddubsw %%ymm13, %[" next "], %%ymm15\n\t" \
    "vpaddw %%ymm15, %%ymm14, %%ymm14\n\t"         \
    "vpmaddwd %[ones], %%ymm14, %%ymm14\n\t"       \
    "vpaddd %%ymm14, %[" sum "], %[" sum "]\n\t"
INLINE void add_two_groups(const int nv, const uint32_t *f, const WORDS x[VECTORS], const WORDS next[VECTORS], SUMS *a, SUMS *b) {
    if (nv == VECTORS)
        __asm__(
            LOAD_FILTER ADD_PRODUCTS("a", "x0", "n0") ADD_PRODUCTS("b", "x1", "n1")
            : [a] "+x"(*a), [b] "+x"(*b)
            : [f] "m"(f[0]), [f2] "m"(f[FILTERS]), [x0] "x"(x[0]), [x1] "x"(x[1]), [n0] "x"(next[0]), [n1] "x"(next[1]), [ones] "m"(ones)
            : "xmm12", "xmm13", "xmm14", "xmm15");
    else
        __asm__(LOAD_FILTER ADD_PRODUCTS("a", "x0", "n0")
                : [a] "+x"(*a)
                : [f] "m"(f[0]), [f2] "m"(f[FILTERS]), [x0] "x"(x[0]), [n0] "x"(next[0]), [ones] "m"(ones)
                : "xmm12", "xmm13", "xmm14", "xmm15");
}

/* FOUR filters; the sums begin as they are. */
INLINE void four_filters(const int nv, int64_t groups, const uint32_t *f, const uint32_t *w, int64_t w_pitch, const excess_list *list,
                         SUMS acc[FOUR][MAX_VECTORS]) {
    const uint32_t *first = w;
    for (; groups >= 2; groups -= 2, f += 2 * FILTERS, w += 2 * w_pitch) {
        WORDS x[VECTORS], next[VECTORS];
        __builtin_prefetch(w + ROWS_AHEAD * w_pitch), __builtin_prefetch(w + (ROWS_AHEAD + 1) * w_pitch);
        __builtin_prefetch(f + ROWS_AHEAD * FILTERS);
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) x[v] = w_load(w + v * LANES), next[v] = w_load(w + w_pitch + v * LANES);
#pragma GCC unroll 4
        for (int j = 0; j < FOUR; j++) add_two_groups(nv, f + j, x, next, &acc[j][0], &acc[j][nv - 1]);
    }
    if (groups)
#pragma GCC unroll 4
        for (int j = 0; j < FOUR; j++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++) acc[j][v] = s_one_group(acc[j][v], w_load(w + v * LANES), w_set1(f[j]));
    for (int64_t i = 0; i < list->count; i++)
#pragma GCC unroll 4
        for (int j = 0; j < FOUR; j++) {
            const excess *e = &list->entries[i][j];
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                acc[j][v] = s_one_group(acc[j][v], w_load(first + e->group * w_pitch + v * LANES), w_set1(e->weights));
        }
}

/* The same of any weights. */
static __attribute__((noinline)) void any_four_filters(int64_t vectors, int64_t groups, const uint32_t *f, const uint32_t *w,
                                                       int64_t w_pitch, SUMS sums[FOUR][MAX_VECTORS]) {
    for (; groups > 0; groups--, f += FILTERS, w += w_pitch)
        for (int64_t v = 0; v < vectors; v++) {
            const WORDS x = w_load(w + v * LANES), even = w_and(x, w_set1(0x00FF00FFu)), odd = _mm256_srli_epi16(x, 8);
#pragma GCC unroll 4
            for (int j = 0; j < FOUR; j++) {
                const WORDS y = w_set1(f[j]), low = _mm256_madd_epi16(even, _mm256_srai_epi16(_mm256_slli_epi16(y, 8), 8));
                sums[j][v] = s_add(sums[j][v], s_add(low, _mm256_madd_epi16(odd, _mm256_srai_epi16(y, 8))));
            }
        }
}

INLINE void sized(const int nv, int64_t k, const uint32_t *f, const uint32_t *w, int64_t w_pitch, T *out, int64_t out_pitch, int64_t nw,
                  int64_t nf, const pysim_store *s) {
    const int64_t groups = k / GROUP;
    const int biased = s->bias_filters && s->alpha >= 1 && s->alpha <= 1;
    const int64_t bytes = s->rescale.scales && s->rescale.result != PYSIM_F32 ? 1 : (int64_t)sizeof(T);
    for (int64_t first = 0; first < nf; first += FOUR) {
        const excess_list *list = list_of(f, groups, first / FOUR);
        const int64_t rows = nf - first;
        T *to = (T *)(void *)((char *)out + first * out_pitch * bytes);
        SUMS acc[MAX_FILTERS][MAX_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < FOUR; j++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++) acc[j][v] = biased && j < rows ? s_set1(((const T *)s->bias_filters)[first + j]) : s_zero();
        if (groups && list->count != UNLISTED) four_filters(nv, groups, f + first, w, w_pitch, list, acc);
        else if (groups) {
            SUMS sums[MAX_FILTERS][MAX_VECTORS];
#pragma GCC unroll 4
            for (int j = 0; j < FOUR; j++)
#pragma GCC unroll 2
                for (int v = 0; v < nv; v++) sums[j][v] = acc[j][v];
            any_four_filters(nv, groups, f + first, w, w_pitch, sums);
#pragma GCC unroll 4
            for (int j = 0; j < FOUR; j++)
#pragma GCC unroll 2
                for (int v = 0; v < nv; v++) acc[j][v] = sums[j][v];
        }
        if (rows >= FOUR) finish(nv, FOUR, first, biased, acc, to, out_pitch, nw, s);
        else if (rows == 3) finish(nv, 3, first, biased, acc, to, out_pitch, nw, s);
        else if (rows == 2) finish(nv, 2, first, biased, acc, to, out_pitch, nw, s);
        else finish(nv, 1, first, biased, acc, to, out_pitch, nw, s);
    }
}

void NAME(16, 12)(ARGUMENTS);
void NAME(16, 12)(ARGUMENTS) {
    if (nw > LANES) sized(2, k, filters, windows, window_pitch, out, out_pitch, nw, nf, store);
    else sized(1, k, filters, windows, window_pitch, out, out_pitch, nw, nf, store);
}

/* ---- preparing ---- */

static int of_sign(int8_t weight, int sign) { return sign ? -(weight < 0 ? weight : 0) : weight > 0 ? weight : 0; }
static int least(int a, int b) { return a < b ? a : b; }

/* What weights of each half and sign of one or two groups (`at`; NULL: none) have beyond MOST; all of it. */
static int beyond(int8_t *const at[2], int need[HALVES_OF_GROUP][SIGNS]) {
    int all = 0;
    for (int half = 0; half < HALVES_OF_GROUP; half++)
        for (int sign = 0; sign < SIGNS; sign++) {
            int sum = 0;
            for (int g = 0; g < 2; g++)
                for (int i = 2 * half; at[g] && i < 2 * half + 2; i++) sum += of_sign(at[g][i], sign);
            need[half][sign] = sum > MOST ? sum - MOST : 0;
            all += need[half][sign];
        }
    return all;
}

/* Takes what is needed off a group's weights, at most MOST of a half and sign; how much that is. */
static int take(int8_t weights[GROUP], int need[HALVES_OF_GROUP][SIGNS], int8_t taken[GROUP]) {
    int all = 0;
    memset(taken, 0, GROUP);
    for (int half = 0; half < HALVES_OF_GROUP; half++)
        for (int sign = 0; sign < SIGNS; sign++) {
            int left = least(need[half][sign], MOST);
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                const int part = least(left, of_sign(weights[i], sign)), change = sign ? -part : part;
                if (part == 0) continue;
                weights[i] = (int8_t)(weights[i] - change), taken[i] = (int8_t)change;
                left -= part, need[half][sign] -= part, all += part;
            }
        }
    return all;
}

/* How much a group can give. */
static int offered(const int8_t *weights, int need[HALVES_OF_GROUP][SIGNS]) {
    int8_t own[GROUP], taken[GROUP];
    int left[HALVES_OF_GROUP][SIGNS];
    memcpy(own, weights, sizeof own), memcpy(left, need, sizeof left);
    return take(own, left, taken);
}

/* Bounds a filter's weights in one or two groups from `group` on. Its *count entries stand at `to`, FOUR apart; false without room. */
static int bound_two(int8_t *const at[2], int64_t group, excess *to, int64_t *count, int64_t room) {
    int need[HALVES_OF_GROUP][SIGNS];
    for (int left = beyond(at, need); left; ++*count) {
        int8_t taken[GROUP];
        if (*count == room) return 0;
        const int from = at[1] && offered(at[1], need) > offered(at[0], need);
        left -= take(at[from], need, taken);
        to[*count * FOUR].group = (uint32_t)(group + from);
        memcpy(&to[*count * FOUR].weights, taken, sizeof taken);
    }
    return 1;
}

static void give_back(int8_t *filter, const excess *e, int64_t count) {
    for (; count > 0; count--, e += FOUR) {
        int8_t taken[GROUP], *at = filter + (int64_t)e->group * FILTERS * GROUP;
        memcpy(taken, &e->weights, sizeof taken);
        for (int i = 0; i < GROUP; i++) at[i] = (int8_t)(at[i] + taken[i]);
    }
}

static void bound_four(int8_t *weights, int64_t groups, excess_list *list) {
    const int64_t room = (groups * FOUR * GROUP * LIST_BYTES - (int64_t)sizeof *list) / (int64_t)sizeof *list->entries;
    int64_t counts[FOUR] = {0}, most = 0;
    int fits = 1;
    for (int64_t f = 0; f < FOUR && fits; f++) {
        for (int64_t g = 0; g < groups && fits; g += 2) {
            int8_t *first = weights + (g * FILTERS + f) * GROUP;
            int8_t *const at[2] = {first, g + 1 < groups ? first + FILTERS * GROUP : NULL};
            fits = bound_two(at, g, &list->entries[0][f], &counts[f], room);
        }
        most = pysim_max(most, counts[f]);
    }
    for (int64_t f = 0; f < FOUR; f++) {
        if (!fits) give_back(weights + f * GROUP, &list->entries[0][f], counts[f]);
        for (int64_t i = counts[f]; fits && i < most; i++) list->entries[i][f] = (excess){0, 0};
    }
    list->count = fits ? (uint32_t)most : UNLISTED;
}

#define BOUND2(target) bound_filters__##target
#define BOUND1(target) BOUND2(target)
void BOUND1(TARGET)(int64_t k, void *panel);
void BOUND1(TARGET)(int64_t k, void *panel) {
    const int64_t groups = k / GROUP;
    for (int64_t four = 0; groups && four < FILTERS / FOUR; four++)
        bound_four((int8_t *)panel + four * FOUR * GROUP, groups, (excess_list *)(void *)(uintptr_t)list_of(panel, groups, four));
}
