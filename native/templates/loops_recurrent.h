/* SPDX-License-Identifier: Apache-2.0
 * Steps of LSTM, GRU and RNN from the sums of their inputs (contract: pysim_recurrent, native/pysim.h). Included by loops.c after
 * activations.h.
 *
 * A step multiplies the state (batch x hidden) by weights that are packed once in panels of PYSIM_PANEL columns, [panel][hidden][column], so
 * that each is one stream from L2. Some panels and rows of the batch are multiplied at a time; a single row adds even and odd k apart, since
 * its few sums would wait for each other. */

enum {
    OF_PANEL = PYSIM_PANEL / LANES,
    PANELS = OF_PANEL == 1   ? 4
             : OF_PANEL == 2 ? 2
                             : 1,
    ROWS_OF_STATE = LANES * sizeof(T) == 64 ? 4 : 2
};

INLINE void state_tile(const int rows, const int panels, int64_t hidden, int64_t pitch, const T *h, const T *w, T *z, int64_t z_pitch) {
    enum { MOST = PANELS * OF_PANEL };
    const int vectors = panels * OF_PANEL, halves = rows == 1 ? 2 : 1;
    VEC sum[ROWS_OF_STATE][MOST], odd[MOST];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) sum[r][v] = v_zero();
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) odd[v] = v_zero();
    int64_t k = 0;
    for (; k + halves <= hidden; k += halves) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            const T *at = w + (v / OF_PANEL * hidden + k) * PYSIM_PANEL + v % OF_PANEL * LANES;
            const VEC of = v_load(at);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) sum[r][v] = v_fma(v_set1(h[r * pitch + k]), of, sum[r][v]);
            if (rows == 1) odd[v] = v_fma(v_set1(h[k + 1]), v_load(at + PYSIM_PANEL), odd[v]);
        }
    }
    if (rows == 1 && k < hidden)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            sum[0][v] = v_fma(v_set1(h[k]), v_load(w + (v / OF_PANEL * hidden + k) * PYSIM_PANEL + v % OF_PANEL * LANES), sum[0][v]);
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) v_store(z + r * z_pitch + v * LANES, v_add(sum[r][v], odd[v]));
}

INLINE void state_panels(const int panels, int64_t batch, int64_t hidden, int64_t pitch, const T *h, const T *w, T *z, int64_t z_pitch) {
    int64_t b = 0;
    for (; b + ROWS_OF_STATE <= batch; b += ROWS_OF_STATE)
        state_tile(ROWS_OF_STATE, panels, hidden, pitch, h + b * pitch, w, z + b * z_pitch, z_pitch);
    for (; b < batch; b++) state_tile(1, panels, hidden, pitch, h + b * pitch, w, z + b * z_pitch, z_pitch);
}

/* z = h w for `columns`, a multiple of PYSIM_PANEL. */
static void state_product(int64_t batch, int64_t hidden, int64_t pitch, const T *h, const T *w, int64_t columns, T *z, int64_t z_pitch) {
    int64_t n = 0;
    for (; n + PANELS * PYSIM_PANEL <= columns; n += PANELS * PYSIM_PANEL)
        state_panels(PANELS, batch, hidden, pitch, h, w + n * hidden, z + n, z_pitch);
    for (; n < columns; n += PYSIM_PANEL) state_panels(1, batch, hidden, pitch, h, w + n * hidden, z + n, z_pitch);
}

INLINE VEC logistic(VEC x) { return 1 / (1 + exponential(-x)); }

/* The states of one sequence after a step. x: its sums, z: the products, both of gates [gate][hidden], those of z padded to `room`. */
INLINE void cell_of(const int kind, const pysim_recurrent *r, int64_t room, const T *x, const T *z, T *h, T *c) {
    const int64_t size = r->hidden;
    for (int64_t i = 0; i < size; i += LANES) {
        const MASK in = v_lanes(0, size - i);
#define GATE(g) (v_load_mask(x + (g) * size + i, in) + v_load(z + (g) * room + i))
        if (kind == PYSIM_RNN) v_store(h + i, hyperbolic_tangent(GATE(0)));
        else if (kind == PYSIM_LSTM) {
            const VEC kept = logistic(GATE(2)) * v_load(c + i) + logistic(GATE(0)) * hyperbolic_tangent(GATE(3));
            v_store(c + i, kept);
            v_store(h + i, logistic(GATE(1)) * hyperbolic_tangent(kept));
        } else {
            const VEC update = v_load(z + i), new = hyperbolic_tangent(v_load_mask(x + 2 * size + i, in) + v_load(z + 2 * room + i));
            v_store(h + i, new + update *(v_load(h + i) - new));
        }
    }
}

/* GRU: z and r become gates; without `separate`, r h is what the new state's weights multiply, else r multiplies their product. */
INLINE void gates_of(const pysim_recurrent *r, int64_t room, const T *x, T *z, const T *h, T *reset) {
    const int64_t size = r->hidden;
    const T *bias = r->bias;
    for (int64_t i = 0; i < size; i += LANES) {
        const MASK in = v_lanes(0, size - i);
        v_store(z + i, logistic(GATE(0)));
        const VEC gate = logistic(GATE(1));
        if (!r->separate) v_store(reset + i, gate * v_load(h + i));
        else v_store(z + 2 * room + i, gate * (v_load(z + 2 * room + i) + (bias ? v_load_mask(bias + i, in) : v_zero())));
    }
#undef GATE
}

/* The workspace has the states h, c and r h, [batch][room] each, then the products [batch][gates room]. */
static void recurrent_steps(const pysim_recurrent *r, const void *from, const void *weights, void *to, void *workspace) {
    const int64_t gates = r->kind == PYSIM_LSTM ? 4 : r->kind == PYSIM_GRU ? 3 : 1, size = r->hidden, batch = r->batch;
    const int64_t room = (size + PYSIM_PANEL - 1) / PYSIM_PANEL * PYSIM_PANEL, wide = gates * room;
    const T *w = weights;
    T *h = workspace, *c = h + batch * room, *reset = c + batch * room, *z = reset + batch * room, *y = to;
    memset(h, 0, (size_t)(3 * batch * room) * sizeof(T));
    for (int64_t b = 0; b < batch; b++) {
        if (r->h) memcpy(h + b * room, (const T *)r->h + b * r->state_batch, (size_t)size * sizeof(T));
        if (r->c) memcpy(c + b * room, (const T *)r->c + b * r->state_batch, (size_t)size * sizeof(T));
    }
    for (int64_t s = 0; s < r->steps; s++) {
        const int64_t t = r->backward ? r->steps - 1 - s : s;
        const T *x = (const T *)from + t * r->sum_step;
        state_product(batch, size, room, h, w, r->kind == PYSIM_GRU && !r->separate ? 2 * room : wide, z, wide);
        if (r->kind == PYSIM_GRU) {
            for (int64_t b = 0; b < batch; b++) gates_of(r, room, x + b * r->sum_batch, z + b * wide, h + b * room, reset + b * room);
            if (!r->separate) state_product(batch, size, room, reset, w + 2 * room * size, room, z + 2 * room, wide);
        }
        for (int64_t b = 0; b < batch; b++) {
            const T *sums = x + b * r->sum_batch;
            switch (r->kind) {
            case PYSIM_LSTM: cell_of(PYSIM_LSTM, r, room, sums, z + b * wide, h + b * room, c + b * room); break;
            case PYSIM_GRU: cell_of(PYSIM_GRU, r, room, sums, z + b * wide, h + b * room, c + b * room); break;
            default: cell_of(PYSIM_RNN, r, room, sums, z + b * wide, h + b * room, c + b * room);
            }
            if (y) memcpy(y + t * r->y_step + b * r->y_batch, h + b * room, (size_t)size * sizeof(T));
        }
    }
    for (int64_t b = 0; b < batch; b++) {
        if (r->last_h) memcpy((T *)r->last_h + b * r->state_batch, h + b * room, (size_t)size * sizeof(T));
        if (r->last_c) memcpy((T *)r->last_c + b * r->state_batch, c + b * room, (size_t)size * sizeof(T));
    }
}
