/* SPDX-License-Identifier: Apache-2.0
 * The sums before and after the seven products of algorithms/strassen/strassen.c, one pass over memory each; included by templates/loops.c. */

/* A vector at element i, of which `rest` is kept if it is not `whole`. */
INLINE VEC quarter_at(const T *x, int64_t i, const int whole, MASK rest) { return whole ? v_load(x + i) : v_load_mask(x + i, rest); }

INLINE void put_at(T *y, int64_t i, VEC v, const int whole, MASK rest) {
    if (whole) v_store(y + i, v);
    else v_store_mask(y + i, v, rest);
}

/* `both`: rows of the second half are there, else they are zeros. */
INLINE void sum_operands(const T *const x[4], int64_t i, const int both, const int whole, MASK rest, T *y, int64_t pitch) {
    const VEC a11 = quarter_at(x[0], i, whole, rest), a12 = quarter_at(x[1], i, whole, rest);
    const VEC a21 = both ? quarter_at(x[2], i, whole, rest) : v_zero(), a22 = both ? quarter_at(x[3], i, whole, rest) : v_zero();
    const VEC s1 = a21 + a22, s2 = s1 - a11;
    const VEC of[] = {a11, a12, a12 - s2, a22, s1, s2, a11 - a21};
#pragma GCC unroll 7
    for (int p = 0; p < PYSIM_PRODUCTS; p++) put_at(y + p * pitch, i, of[p], whole, rest);
}

INLINE void sum_all_operands(const T *const x[4], int64_t count, const int both, T *y, int64_t pitch) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) sum_operands(x, i, both, 1, v_lanes(0, LANES), y, pitch);
    if (i < count) sum_operands(x, i, both, 0, v_lanes(0, count - i), y, pitch);
}

static void sums_of_quarters(const void *const quarters[4], int64_t count, void *y, int64_t pitch) {
    const T *const x[] = {quarters[0], quarters[1], quarters[2], quarters[3]};
    if (x[2]) sum_all_operands(x, count, 1, y, pitch);
    else sum_all_operands(x, count, 0, y, pitch);
}

typedef struct {
    VEC alpha, factor, low, high;
    const T *bias[2], *added[4];
    T *y[4];
} joining;

/* Returns zeros where all results are finite, and else NaN. `plain`: results are sums with a bias. */
INLINE VEC join_products(const joining *j, const T *x, int64_t pitch, int64_t i, const int both, const int plain, const int whole,
                         MASK rest) {
    VEC p[PYSIM_PRODUCTS];
#pragma GCC unroll 7
    for (int k = 0; k < PYSIM_PRODUCTS; k++) p[k] = quarter_at(x + k * pitch, i, whole, rest);
    const VEC u = p[0] + p[5], v = u + p[6];
    VEC sums[] = {p[0] + p[1], u + p[4] + p[2], v - p[3], v + p[4]}, all = sums[0] + sums[1];
    const VEC bias[] = {quarter_at(j->bias[0], i, whole, rest), quarter_at(j->bias[1], i, whole, rest)};
    if (both) all += sums[2] + sums[3];
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        if (q > 1 && !both) continue;
        VEC y = plain ? sums[q] + bias[q & 1] : sums[q] * j->alpha + bias[q & 1];
        if (!plain && j->added[q]) y += quarter_at(j->added[q], i, whole, rest) * j->factor;
        put_at(j->y[q], i, v_between(j->low, j->high, y), whole, rest);
    }
    return all * 0;
}

INLINE int join_all_products(const joining *j, const T *x, int64_t pitch, int64_t count, const int both, const int plain) {
    VEC checked = v_zero();
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) checked += join_products(j, x, pitch, i, both, plain, 1, v_lanes(0, LANES));
    if (i < count) checked += join_products(j, x, pitch, i, both, plain, 0, v_lanes(0, count - i));
    T each[LANES];
    int finite = 1;
    v_store(each, checked);
    for (int lane = 0; lane < LANES; lane++) finite &= each[lane] == 0;
    return finite;
}

static int results_of_products(const pysim_join *of, const void *products, int64_t pitch, int64_t count, void *const y[4]) {
    const int plain = of->alpha == 1 && !of->added[0];
    joining j = {v_set1((T)of->alpha),
                 v_set1((T)of->factor),
                 v_set1((T)of->bounds.low),
                 v_set1((T)of->bounds.high),
                 {of->bias[0], of->bias[1]},
                 {0},
                 {0}};
    for (int q = 0; q < 4; q++) j.added[q] = of->added[q], j.y[q] = y[q];
    if (y[2]) return plain ? join_all_products(&j, products, pitch, count, 1, 1) : join_all_products(&j, products, pitch, count, 1, 0);
    return plain ? join_all_products(&j, products, pitch, count, 0, 1) : join_all_products(&j, products, pitch, count, 0, 0);
}
