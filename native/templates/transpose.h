/* SPDX-License-Identifier: Apache-2.0
 * A LANES x LANES block in place: after log2(LANES) perfect shuffles row i holds column i. Included once per vector type. */
INLINE void transpose(VEC r[LANES]) {
    VEC t[LANES];
#pragma GCC unroll 4
    for (int stage = 1; stage < LANES; stage *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            t[2 * i] = v_interleave_low(r[i], r[i + LANES / 2]);
            t[2 * i + 1] = v_interleave_high(r[i], r[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) r[i] = t[i];
    }
}

/* r[c] = column c of a block whose row l lies at src + row[l]. */
#ifndef V_LOAD_COLUMNS
INLINE void v_load_columns(VEC r[LANES], const T *src, const int64_t row[LANES]) {
#pragma GCC unroll 16
    for (int l = 0; l < LANES; l++) r[l] = v_load(src + row[l]);
    transpose(r);
}
#endif
