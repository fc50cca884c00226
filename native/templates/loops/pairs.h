/* SPDX-License-Identifier: Apache-2.0
 * Loops over two arrays, element by element. Included by loops.c, which defines finish_rows. */

/* ---- pairs ---- */

INLINE VEC paired(const int kind, VEC a, VEC b) {
    switch (kind) {
    case PYSIM_ADD: return a + b;
    case PYSIM_SUBTRACT: return a - b;
    case PYSIM_MULTIPLY: return a * b;
    default: return a / b;
    }
}

/* The kind, and whether an operand is a scalar, are constants. */
INLINE void pair_row(const int kind, const int a_is_scalar, const int b_is_scalar, const T *a, const T *b, int64_t count, T *y) {
    const VEC a_all = v_broadcast(a), b_all = v_broadcast(b);
    const int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        v_store(y + i, paired(kind, a_is_scalar ? a_all : v_load(a + i), b_is_scalar ? b_all : v_load(b + i)));
    if (whole == count) return;
    const MASK rest = v_lanes(0, count - whole);
    const VEC a_last = a_is_scalar ? a_all : v_load_mask(a + whole, rest), b_last = b_is_scalar ? b_all : v_load_mask(b + whole, rest);
    v_store_mask(y + whole, paired(kind, a_last, b_last), rest);
}

INLINE void pair_row_of(const int kind, const T *a, int64_t a_step, const T *b, int64_t b_step, int64_t count, T *y) {
    if (a_step == 1 && b_step == 1) pair_row(kind, 0, 0, a, b, count, y);
    else if (a_step == 1 && b_step == 0) pair_row(kind, 0, 1, a, b, count, y);
    else if (a_step == 0 && b_step == 1) pair_row(kind, 1, 0, a, b, count, y);
    else
        for (int64_t i = 0; i < count; i++) pair_row(kind, 1, 1, a + i * a_step, b + i * b_step, 1, y + i);
}

/* y = m ? a : y, where steps are constants. */
INLINE void choose_row(const int64_t a_step, const int64_t m_step, const T *a, const uint8_t *m, int64_t count, T *y) {
    for (int64_t i = 0; i < count; i++) y[i] = m[i * m_step] ? a[i * a_step] : y[i];
}

static void choose_row_of(const T *a, int64_t a_step, const uint8_t *m, int64_t m_step, int64_t count, T *y) {
    if (a_step == 1 && m_step == 1) choose_row(1, 1, a, m, count, y);
    else if (a_step == 0 && m_step == 1) choose_row(0, 1, a, m, count, y);
    else if (a_step == 1 && m_step == 0) choose_row(1, 0, a, m, count, y);
    else choose_row(a_step, m_step, a, m, count, y);
}

static void pair_arrays(const pysim_pair *p, const pysim_finish *f, const void *first, const void *second, void *to) {
    const int32_t last = p->axes - 1;
    const int64_t size = p->sizes[last], a_step = p->a_steps[last], b_step = p->b_steps[last];
    const T *a = first, *b = second;
    const uint8_t *chosen = second;
    T *y = to;
    int64_t at[6] = {0};
    for (;;) {
        for (int64_t i = 0; i < size; i += PIECE) {
            const int64_t count = pysim_min(PIECE, size - i);
            switch (p->kind) {
            case PYSIM_ADD: pair_row_of(PYSIM_ADD, a + i * a_step, a_step, b + i * b_step, b_step, count, y + i); break;
            case PYSIM_SUBTRACT: pair_row_of(PYSIM_SUBTRACT, a + i * a_step, a_step, b + i * b_step, b_step, count, y + i); break;
            case PYSIM_MULTIPLY: pair_row_of(PYSIM_MULTIPLY, a + i * a_step, a_step, b + i * b_step, b_step, count, y + i); break;
            case PYSIM_CHOOSE: choose_row_of(a + i * a_step, a_step, chosen + i * b_step, b_step, count, y + i); break;
            default: pair_row_of(PYSIM_DIVIDE, a + i * a_step, a_step, b + i * b_step, b_step, count, y + i);
            }
            pysim_finish_rows(f, y + i, count, 1, count);
        }
        y += size;
        int32_t axis = last - 1;
        for (; axis >= 0; axis--) {
            a += p->a_steps[axis], b += p->b_steps[axis], chosen += p->b_steps[axis];
            if (++at[axis] < p->sizes[axis]) break;
            a -= p->a_steps[axis] * p->sizes[axis], b -= p->b_steps[axis] * p->sizes[axis], at[axis] = 0;
            chosen -= p->b_steps[axis] * p->sizes[axis];
        }
        if (axis < 0) return;
    }
}
