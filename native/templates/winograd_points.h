/* SPDX-License-Identifier: Apache-2.0
 * The transforms of Winograd along one axis, on vectors.
 *
 * F(m, r): e = m + r - 1, Toom-Cook at the points 0, +-p (e/2 - 1 pairs) and infinity. With y = x^2, R(y) = prod (y - p^2) over
 * all pairs, and Q_p(y) the same product without p:
 *
 *   B^T  0: R on d0 d2 d4 ..   +-p: Q_p on d2 d4 .. +- p (Q_p on d1 d3 ..)   infinity: R on d1 d3 ..
 *   G    0: g0 / R(0)          +-p: sum (+-p)^i g_i / (2 p^2 Q_p(p^2))       infinity: g_(r-1)
 *   A^T  y_k = [k = 0] m_0 + sum p^k (m_+p + (-1)^k m_-p) + [k = m-1] m_infinity
 *
 * (Lavin and Gray, arXiv 1509.09308; Barabasz et al., arXiv 1803.10986, on points.) The two points of a pair share the sums of even and of odd
 * terms. B^T depends on e alone, so kernels of 3, 4 and 5 taps share it for e = 6. For e = 4 all coefficients are integers and halves. The
 * points for e = 6 had the least error among those tried with F(4x4, 3x3) (docs/cost-model.md). An axis without taps has e = 1, and nothing is
 * transformed. */
enum { MAX_EDGE = PYSIM_WINOGRAD_MAX_OUTPUTS + 2, PAIRS = MAX_EDGE / 2 - 1 };

INLINE T point_of(const int e, const int pair) {
    const T points[PAIRS + 1][PAIRS] = {{0}, {1}, {0.75, 1.5}};
    return points[e / 2 - 1][pair];
}

/* Coefficient i of prod (y - p^2) over all pairs but `without` (-1: over all pairs). */
INLINE T coefficient(const int e, const int without, const int i) {
    T c[PAIRS + 1] = {1};
    int degree = 0;
#pragma GCC unroll 4
    for (int pair = 0; pair < e / 2 - 1; pair++) {
        if (pair == without) continue;
        const T root = point_of(e, pair) * point_of(e, pair);
        degree++;
#pragma GCC unroll 4
        for (int k = degree; k > 0; k--) c[k] = c[k - 1] - (k < degree ? root * c[k] : 0);
        c[0] *= -root;
    }
    return c[i];
}

/* That polynomial applied to x[0], x[2], ..; its leading coefficient is 1. */
INLINE VEC polynomial(const int e, const int without, const VEC *x) {
    const int degree = e / 2 - 1 - (without >= 0);
    VEC sum = x[2 * degree];
#pragma GCC unroll 4
    for (int i = degree - 1; i >= 0; i--) sum = v_fma(v_set1(coefficient(e, without, i)), x[2 * i], sum);
    return sum;
}

/* y = B^T x */
INLINE void input_transform(const int e, const VEC x[MAX_EDGE], VEC y[MAX_EDGE]) {
    y[0] = e == 1 ? x[0] : polynomial(e, -1, x);
    if (e == 1) return;
#pragma GCC unroll 4
    for (int pair = 0; pair < e / 2 - 1; pair++) {
        const VEC even = polynomial(e, pair, x + 2), odd = polynomial(e, pair, x + 1), p = v_set1(point_of(e, pair));
        y[1 + 2 * pair] = v_fma(p, odd, even);
        y[2 + 2 * pair] = v_fma(v_set1(-point_of(e, pair)), odd, even);
    }
    y[e - 1] = polynomial(e, -1, x + 1);
}

INLINE T power(const T p, const int k) {
    T value = 1;
#pragma GCC unroll 8
    for (int i = 0; i < k; i++) value *= p;
    return value;
}

/* y = G x */
INLINE void filter_transform(const int e, const int r, const VEC x[PYSIM_WINOGRAD_MAX_TAPS], VEC y[MAX_EDGE]) {
    y[0] = e == 1 ? x[0] : v_mul(x[0], v_set1(1 / coefficient(e, -1, 0)));
    if (e == 1) return;
#pragma GCC unroll 4
    for (int pair = 0; pair < e / 2 - 1; pair++) {
        const T p = point_of(e, pair);
        T q = 0;
#pragma GCC unroll 4
        for (int i = e / 2 - 2; i >= 0; i--) q = q * p * p + coefficient(e, pair, i);
        const T scale = 1 / (2 * p * p * q);
        VEC even = v_mul(x[0], v_set1(scale)), odd = v_mul(x[1], v_set1(p * scale));
#pragma GCC unroll 4
        for (int i = 2; i < r; i += 2) even = v_fma(x[i], v_set1(power(p, i) * scale), even);
#pragma GCC unroll 4
        for (int i = 3; i < r; i += 2) odd = v_fma(x[i], v_set1(power(p, i) * scale), odd);
        y[1 + 2 * pair] = v_add(even, odd);
        y[2 + 2 * pair] = even - odd;
    }
    y[e - 1] = x[r - 1];
}

/* y = A^T x */
INLINE void output_transform(const int e, const int m, const VEC x[MAX_EDGE], VEC y[PYSIM_WINOGRAD_MAX_OUTPUTS]) {
    VEC even[PAIRS], odd[PAIRS];
    y[0] = x[0];
    if (e == 1) return;
#pragma GCC unroll 4
    for (int pair = 0; pair < e / 2 - 1; pair++) {
        even[pair] = v_add(x[1 + 2 * pair], x[2 + 2 * pair]);
        odd[pair] = x[1 + 2 * pair] - x[2 + 2 * pair];
    }
#pragma GCC unroll 8
    for (int k = 0; k < m; k++) {
        const VEC *of = k % 2 ? odd : even;
        VEC sum = k == 0 ? x[0] : k == m - 1 ? x[e - 1] : v_mul(of[0], v_set1(power(point_of(e, 0), k)));
#pragma GCC unroll 4
        for (int pair = k == 0 || k == m - 1 ? 0 : 1; pair < e / 2 - 1; pair++)
            sum = k == 0 ? v_add(sum, of[pair]) : v_fma(of[pair], v_set1(power(point_of(e, pair), k)), sum);
        y[k] = sum;
    }
}
