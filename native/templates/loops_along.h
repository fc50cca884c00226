/* SPDX-License-Identifier: Apache-2.0
 * Along one axis of an array: sums, largest elements and their places, running sums, the best of a row in order. Included by loops.c after
 * loops_arrays.h. NaN is larger than all numbers in an order, and the result of what is folded. */

/* ---- folds ---- */

/* The smallest element is the largest of the negated ones: `of` negates what is read, and what was found. */
INLINE VEC of(const int kind, VEC v) { return kind == PYSIM_FOLD_SMALLEST ? (VEC)-v : v; }

INLINE VEC folded(const int kind, VEC a, VEC b) {
    if (kind == PYSIM_FOLD_LARGEST || kind == PYSIM_FOLD_SMALLEST) return v_larger(a, b);
    return kind == PYSIM_FOLD_PRODUCT ? v_mul(a, b) : v_add(a, b);
}

INLINE T neutral(const int kind) {
    return kind == PYSIM_FOLD_LARGEST || kind == PYSIM_FOLD_SMALLEST ? -(T)__builtin_inf() : kind == PYSIM_FOLD_PRODUCT;
}

/* A piece of a row, in FOLDS partial results, whatever the vectors; those of l and l + FOLDS / 2 are folded, down to one vector. */
enum { FOLDS = 32 };
INLINE VEC fold_piece(const int kind, const T *x, int64_t size) {
    const VEC none = v_set1(neutral(kind));
    VEC part[FOLDS / LANES];
    int64_t i = 0;
#pragma GCC unroll 16
    for (int v = 0; v < FOLDS / LANES; v++) part[v] = none;
    for (; i + FOLDS <= size; i += FOLDS)
#pragma GCC unroll 16
        for (int v = 0; v < FOLDS / LANES; v++) part[v] = folded(kind, part[v], of(kind, v_load(x + i + v * LANES)));
#pragma GCC unroll 16
    for (int v = 0; v < FOLDS / LANES; v++, i += LANES) {
        if (i >= size) break;
        const VEC one = of(kind, size - i < LANES ? v_load_mask(x + i, v_lanes(0, size - i)) : v_load(x + i));
        const int adds = kind == PYSIM_FOLD_SUM || kind == PYSIM_FOLD_MEAN; /* lanes behind the row are 0 */
        part[v] = folded(kind, part[v], size - i < LANES && !adds ? first_lanes(one, size - i, none) : one);
    }
#pragma GCC unroll 4
    for (int n = FOLDS / LANES / 2; n > 0; n /= 2)
#pragma GCC unroll 8
        for (int v = 0; v < n; v++) part[v] = folded(kind, part[v], part[v + n]);
    return part[0];
}

/* The sums of pieces are added in double, so that long rows lose no digits. */
INLINE T fold_row(const int kind, const T *x, int64_t size) {
    const int adds = kind == PYSIM_FOLD_SUM || kind == PYSIM_FOLD_MEAN;
    double total = 0;
    VEC found = v_set1(neutral(kind));
    for (int64_t from = 0; from < size; from += PIECE) {
        VEC v = fold_piece(kind, x + from, pysim_min(PIECE, size - from));
#pragma GCC unroll 4
        for (int n = LANES; n > 1; n /= 2) v = folded(kind, v_interleave_low(v, v), v_interleave_high(v, v));
        if (adds) total += v[0];
        else found = folded(kind, found, v);
    }
    return adds ? (T)(kind == PYSIM_FOLD_MEAN ? total / (double)size : total) : of(kind, found)[0];
}

/* As many short rows as a vector has lanes: their vectors are folded in pairs, so that row r ends in lane r. */
INLINE void fold_rows(const int kind, const T *x, int64_t size, T *y) {
    VEC r[LANES];
    for (int l = 0; l < LANES; l++) r[l] = fold_piece(kind, x + l * size, size);
#pragma GCC unroll 4
    for (int half = LANES / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int l = 0; l < half; l++) r[l] = folded(kind, v_interleave_low(r[l], r[l + half]), v_interleave_high(r[l], r[l + half]));
    v_store(y, kind == PYSIM_FOLD_MEAN ? (VEC)(r[0] / v_set1((T)size)) : of(kind, r[0]));
}

/* Rows beside each other: `vectors` of them at a time, whose folds stay in registers. */
INLINE void fold_columns(const int kind, const int vectors, int64_t size, int64_t inner, const T *x, MASK in, T *y) {
    VEC found[4];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) found[v] = of(kind, vectors > 1 ? v_load(x + v * LANES) : v_load_mask(x, in));
    for (int64_t s = 1; s < size; s++) {
        x += inner;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            found[v] = folded(kind, found[v], of(kind, vectors > 1 ? v_load(x + v * LANES) : v_load_mask(x, in)));
    }
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
        found[v] = kind == PYSIM_FOLD_MEAN ? (VEC)(found[v] / v_set1((T)size)) : of(kind, found[v]);
        if (vectors > 1) v_store(y + v * LANES, found[v]);
        else v_store_mask(y, found[v], in);
    }
}

INLINE void fold_as(const int kind, const pysim_fold *f, const T *x, T *y) {
    int64_t o = 0;
    if (f->inner == 1 && f->size <= PIECE)
        for (; o + LANES <= f->outer; o += LANES, x += LANES * f->size, y += LANES) fold_rows(kind, x, f->size, y);
    for (; o < f->outer; o++, x += f->size * f->inner, y += f->inner) {
        int64_t n = 0;
        if (f->inner == 1) *y = fold_row(kind, x, f->size);
        else {
            for (; n + 4 * LANES <= f->inner; n += 4 * LANES) fold_columns(kind, 4, f->size, f->inner, x + n, v_lanes(0, LANES), y + n);
            for (; n < f->inner; n += LANES) fold_columns(kind, 1, f->size, f->inner, x + n, v_lanes(0, f->inner - n), y + n);
        }
    }
}

/* ---- places ---- */

/* The first or last place of `best` in a row, or of a NaN if that is the best. */
static int64_t place_in_row(const T *x, int64_t size, T best, int last) {
    enum { BLOCK_OF_PLACES = 64 };
    const int64_t blocks = (size + BLOCK_OF_PLACES - 1) / BLOCK_OF_PLACES;
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t from = (last ? blocks - 1 - b : b) * BLOCK_OF_PLACES, count = pysim_min(BLOCK_OF_PLACES, size - from);
        int any = 0;
        for (int64_t i = 0; i < count; i++) any |= (x[from + i] == best) | (x[from + i] != x[from + i]);
        for (int64_t i = 0; any && i < count; i++) {
            const T of = x[from + (last ? count - 1 - i : i)];
            if (of == best || (best != best && of != of)) return from + (last ? count - 1 - i : i);
        }
    }
    return 0;
}

INLINE void place_columns(const pysim_fold *f, const int smallest, const T *x, int64_t count, int64_t *y) {
    const MASK in = v_lanes(0, count);
    VEC best = v_load_mask(x, in);
    BITS place = (BITS)v_zero();
    if (smallest) best = -best;
    for (int64_t s = 1; s < f->size; s++) {
        VEC v = v_load_mask(x + s * f->inner, in);
        if (smallest) v = -v;
        const BITS number = (BITS)(best == best), missing = (BITS)(v != v);
        BITS taken = (BITS)(v > best) | (missing & number);
        if (f->last) taken = ((BITS)(v >= best) & number) | missing;
        best = (VEC)((taken & (BITS)v) | (~taken & (BITS)best));
        place = (taken & (BITS)((BITS){0} + (__typeof__(place[0]))s)) | (~taken & place);
    }
    for (int64_t i = 0; i < count; i++) y[i] = (int64_t)place[i];
}

static void places(const pysim_fold *f, const T *x, int64_t *y) {
    const int smallest = f->kind == PYSIM_FOLD_SMALLEST_AT;
    for (int64_t o = 0; o < f->outer; o++, x += f->size * f->inner, y += f->inner) {
        if (f->inner == 1) {
            const T best = smallest ? fold_row(PYSIM_FOLD_SMALLEST, x, f->size) : fold_row(PYSIM_FOLD_LARGEST, x, f->size);
            *y = place_in_row(x, f->size, best, f->last);
            continue;
        }
        for (int64_t n = 0; n < f->inner; n += LANES) {
            if (smallest) place_columns(f, 1, x + n, pysim_min(LANES, f->inner - n), y + n);
            else place_columns(f, 0, x + n, pysim_min(LANES, f->inner - n), y + n);
        }
    }
}

/* ---- running sums ---- */

/* Rows beside each other, `vectors` of them at a time. */
INLINE void running_columns(const int vectors, const pysim_fold *f, const T *x, int64_t step, MASK in, T *y) {
    VEC sum[4], before[4];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) sum[v] = v_zero();
    for (int64_t s = 0; s < f->size; s++, x += step, y += step)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const VEC next = vectors > 1 ? v_load(x + v * LANES) : v_load_mask(x, in);
            before[v] = sum[v];
            sum[v] = s ? v_add(sum[v], next) : next;
            if (vectors > 1) v_store(y + v * LANES, f->exclusive ? before[v] : sum[v]);
            else v_store_mask(y, f->exclusive ? before[v] : sum[v], in);
        }
}

/* One after the other, as in NumPy. */
static void running_sums(const pysim_fold *f, const T *from, T *to) {
    const int64_t step = f->backward ? -f->inner : f->inner, all = f->size * f->inner;
    for (int64_t o = 0; o < f->outer; o++) {
        const int64_t first = o * all + (f->backward ? all - f->inner : 0);
        const T *x = from + first;
        T *y = to + first, sum = 0;
        int64_t n = 0;
        for (int64_t s = 0; f->inner == 1 && s < f->size; s++, x += step, y += step) {
            const T before = sum;
            sum = s ? sum + *x : *x;
            *y = f->exclusive ? before : sum;
        }
        if (f->inner == 1) continue;
        for (; n + 4 * LANES <= f->inner; n += 4 * LANES) running_columns(4, f, x + n, step, v_lanes(0, LANES), y + n);
        for (; n < f->inner; n += LANES) running_columns(1, f, x + n, step, v_lanes(0, f->inner - n), y + n);
    }
}

static void fold_axis(const pysim_fold *f, const void *from, void *to) {
    switch (f->kind) {
    case PYSIM_FOLD_SUM: fold_as(PYSIM_FOLD_SUM, f, from, to); break;
    case PYSIM_FOLD_MEAN: fold_as(PYSIM_FOLD_MEAN, f, from, to); break;
    case PYSIM_FOLD_PRODUCT: fold_as(PYSIM_FOLD_PRODUCT, f, from, to); break;
    case PYSIM_FOLD_LARGEST: fold_as(PYSIM_FOLD_LARGEST, f, from, to); break;
    case PYSIM_FOLD_SMALLEST: fold_as(PYSIM_FOLD_SMALLEST, f, from, to); break;
    case PYSIM_FOLD_RUNNING: running_sums(f, from, to); break;
    default: places(f, from, to);
    }
}

/* ---- the best of a row ---- */

INLINE int is_better(const int smallest, T a, T b) {
    if (smallest) return (a < b) | ((b != b) & (a == a));
    return (a > b) | ((a != a) & (b == b));
}

/* The best so far lie in order; an element that may be better than the last of them moves what is behind its place. */
INLINE void best_of_row(const int smallest, int64_t size, int64_t count, const T *x, T *best, int64_t *at) {
    enum { BLOCK_OF_ROW = 32 };
    int64_t have = 0;
    for (int64_t from = 0; from < size; from += BLOCK_OF_ROW) {
        const int64_t end = pysim_min(size, from + BLOCK_OF_ROW);
        if (have == count) {
            const T last = best[count - 1];
            int any = 0;
            for (int64_t i = from; i < end; i++) any |= smallest ? !(x[i] >= last) : !(x[i] <= last);
            if (!any) continue;
        }
        for (int64_t i = from; i < end; i++) {
            const T v = x[i];
            if (have == count && !is_better(smallest, v, best[count - 1])) continue;
            int64_t low = 0, high = have; /* the first place whose element is worse */
            while (low < high) {
                const int64_t middle = (low + high) / 2;
                if (is_better(smallest, v, best[middle])) high = middle;
                else low = middle + 1;
            }
            have = pysim_min(count, have + 1);
            memmove(best + low + 1, best + low, (size_t)(have - 1 - low) * sizeof(T));
            memmove(at + low + 1, at + low, (size_t)(have - 1 - low) * sizeof *at);
            best[low] = v, at[low] = i;
        }
    }
}

static void best_of_rows(const pysim_best *b, const void *from, void *to, int64_t *at) {
    const T *x = from;
    T *y = to;
    for (int64_t r = 0; r < b->rows; r++, x += b->size, y += b->count, at += b->count) {
        if (b->smallest) best_of_row(1, b->size, b->count, x, y, at);
        else best_of_row(0, b->size, b->count, x, y, at);
    }
}

/* ---- halves ---- */

#if !DOUBLE
static void widen_halves(const void *from, int64_t count, void *to) {
    const uint16_t *restrict x = from;
    float *restrict y = to;
    int64_t i = 0;
#ifdef V_HALVES
    for (; i + LANES <= count; i += LANES) v_store(y + i, v_widen(x + i));
#endif
    for (; i < count; i++) {
        const uint32_t rest = (uint32_t)(x[i] & 0x7fff) << 13, sign = (uint32_t)(x[i] & 0x8000) << 16;
        float small; /* times 2^112 also normalises what is subnormal */
        memcpy(&small, &rest, 4);
        small *= 0x1p112f;
        uint32_t bits;
        memcpy(&bits, &small, 4);
        bits = (rest >= 0x0f800000u ? rest | 0x7f800000u : bits) | sign;
        memcpy(y + i, &bits, 4);
    }
}

/* Rounded to nearest, ties to even; a NaN stays one. */
static void narrow_to_halves(const void *from, int64_t count, void *to) {
    const float *restrict x = from;
    uint16_t *restrict y = to;
    int64_t i = 0;
#ifdef V_HALVES
    for (; i + LANES <= count; i += LANES) v_narrow(y + i, v_load(x + i));
#endif
    for (; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff, kept = rest >> 13 & 0x3ff;
        float small;
        memcpy(&small, &rest, 4);
        small += 0.5f; /* whose last bit is that of a subnormal half */
        uint32_t subnormal;
        memcpy(&subnormal, &small, 4);
        subnormal -= 0x3f000000u;
        const uint32_t normal = (rest - 0x38000000u + 0xfff + (rest >> 13 & 1)) >> 13;
        const uint32_t nan = -(uint32_t)(rest > 0x7f800000u), large = -(uint32_t)(rest >= 0x47800000u),
                       tiny = -(uint32_t)(rest < 0x38800000u);
        const uint32_t strange = 0x7c00 | ((kept | (kept == 0)) & nan);
        const uint32_t half = (strange & large) | (subnormal & tiny) | (normal & ~(large | tiny)); /* no branches: vectors */
        y[i] = (uint16_t)(half | sign);
    }
}
#else
#define widen_halves NULL
#define narrow_to_halves NULL
#endif
