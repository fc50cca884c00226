/* SPDX-License-Identifier: Apache-2.0
 * ABI entry points for operators between convolutions: arguments are checked here, the loops of loops.h compute. */
#include <string.h>

#include "algorithms/nest.h"
#include "integers.h"
#include "operators.h"
#include "abi/status.h"

enum { MIN_PART_BYTES = 16 << 10 }; /* of a thread: less is done before another thread has started */
enum { PIECE = 4096 };              /* floats between planes and blocks of bf16, in L1 */

typedef struct {
    pysim_range_of_items *compute;
    const void *operator;
    int64_t items, block, blocks, parts;
} shared_items;

static void part_of_items(int64_t part, int64_t thread, const void *context) {
    const shared_items *s = context;
    int64_t begin, end;
    (void)thread;
    pysim_split_range(s->blocks, part, s->parts, &begin, &end);
    s->compute(s->operator, begin * s->block, pysim_min(s->items, end * s->block));
}

void pysim_share_items(int64_t items, int64_t block, int64_t item_bytes, int32_t threads, pysim_range_of_items *compute,
                       const void *operator) {
    shared_items s = {.compute = compute, .operator = operator, .items = items, .block = pysim_max(1, block)};
    s.blocks = pysim_ceil_div(items, s.block);
    s.parts = pysim_max(1, pysim_min(pysim_min(threads, s.blocks), items * item_bytes / MIN_PART_BYTES));
    pysim_parallel_for(s.parts, threads, part_of_items, &s);
}

pysim_status pysim_loops_of_values(int32_t dtype, const pysim_loops **loops) {
    if (dtype != PYSIM_BF16) return pysim_loops_of(dtype, loops);
    *loops = pysim_loops_for(dtype);
    return *loops ? PYSIM_OK
                  : pysim_fail(PYSIM_UNSUPPORTED, "dtype is bf16; its operators need avx512bf16, which this CPU or build does not have");
}

pysim_status pysim_loops_of(int32_t dtype, const pysim_loops **loops) {
    const pysim_status status = pysim_check_dtype(dtype);
    if (status != PYSIM_OK) return status;
    *loops = dtype == PYSIM_BF16 ? NULL : pysim_loops_for(dtype);
    if (!*loops && (dtype == PYSIM_F32 || dtype == PYSIM_F64)) return pysim_fail(PYSIM_UNSUPPORTED, "%s", PYSIM_LACKS_OPERATORS);
    return *loops ? PYSIM_OK : pysim_fail(PYSIM_UNSUPPORTED, "dtype is %s; operators are for f32 and f64", pysim_dtype_name(dtype));
}

pysim_status pysim_check_positive(const char *what, const int64_t *values, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (values[i] < 1)
            return pysim_fail(PYSIM_BAD_ARGUMENT, "%s: number %d is %lld; expected at least 1", what, (int)i, (long long)values[i]);
    return PYSIM_OK;
}

static pysim_status check_map(const pysim_map *m, const pysim_epilogue *e, const void *x, const void *scale, const void *shift,
                              const void *y) {
    const int64_t sizes[] = {m->planes, m->size, m->period}, all[] = {m->planes, m->size, pysim_dtype_bytes(m->dtype)};
    int64_t bytes = 0;
    pysim_status status = pysim_check_positive("a map's planes, size and period", sizes, 3);
    if (status == PYSIM_OK && (m->block < 0 || (m->block > 1 && (m->planes % m->block || m->period % m->block))))
        status = pysim_fail(PYSIM_BAD_ARGUMENT,
                            "a map's block is %d; expected 0 (planes) or a divisor of its %lld planes and of their period %lld",
                            (int)m->block, (long long)m->planes, (long long)m->period);
    if (status == PYSIM_OK) status = pysim_product("a map's bytes, planes x size x element", 3, all, &bytes);
    if (status == PYSIM_OK) status = pysim_check_activation(e);
    if (status == PYSIM_OK) status = pysim_check_operand("x", x, m->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("y", y, m->dtype);
    if (status == PYSIM_OK && scale) status = pysim_check_operand("scale", scale, pysim_result_dtype(m->dtype));
    if (status == PYSIM_OK && shift) status = pysim_check_operand("shift", shift, pysim_result_dtype(m->dtype));
    if (status == PYSIM_OK && e->residual) status = pysim_check_operand("residual", e->residual, m->dtype);
    if (status != PYSIM_OK) return status;
    const int64_t few = pysim_min(m->period, m->planes) * pysim_dtype_bytes(pysim_result_dtype(m->dtype));
    const pysim_span spans[] = {
        {"y", y, bytes, 1},       {"x", x == y ? NULL : x, bytes, 0}, {"residual", e->residual, bytes, 0},
        {"scale", scale, few, 0}, {"shift", shift, few, 0},
    };
    return pysim_check_apart(spans, 5);
}

typedef struct {
    const pysim_map *map;
    pysim_finish finish;
    const pysim_loops *loops;
    const char *x, *scale, *shift;
    char *y;
} map_run;

static void map_planes(const void *operator, int64_t begin, int64_t end) {
    const map_run *r = operator;
    const int64_t bytes = pysim_dtype_bytes(r->map->dtype), period = r->map->period == 1 ? r->map->planes : r->map->period;
    pysim_map some = *r->map;
    for (int64_t k = begin; k < end; k += some.planes) { /* up to the next repetition of the scales */
        const int64_t at = k * some.size * bytes;
        const int64_t of = k % r->map->period * pysim_dtype_bytes(pysim_result_dtype(r->map->dtype));
        some.planes = pysim_min(end, (k / period + 1) * period) - k;
        r->loops->map(&some, &r->finish, r->x + at, r->scale ? r->scale + of : NULL, r->shift ? r->shift + of : NULL, r->y + at);
    }
}

pysim_status pysim_share_map(const pysim_map *m, const pysim_epilogue *e, const void *x, const void *scale, const void *shift, void *y,
                             int32_t threads) {
    map_run r = {.map = m, .x = x, .scale = scale, .shift = shift, .y = y};
    if (!m || !e) return pysim_fail(PYSIM_BAD_ARGUMENT, "the %s is NULL", m ? "epilogue" : "map");
    pysim_status status = pysim_loops_of_values(m->dtype, &r.loops);
    if (status == PYSIM_OK) status = check_map(m, e, x, scale, shift, y);
    if (status != PYSIM_OK) return status;
    const int same = !e->residual && e->activation == PYSIM_IDENTITY;
    r.finish = (pysim_finish){same ? NULL : r.loops, y, e->residual, e->activation, e->low, e->high};
    pysim_share_items(m->planes, m->block, m->size * pysim_dtype_bytes(m->dtype), threads, map_planes, &r);
    return PYSIM_OK;
}

pysim_status pysim_run_map(const pysim_map *m, const pysim_epilogue *e, const void *x, const void *scale, const void *shift, void *y) {
    return pysim_share_map(m, e, x, scale, shift, y, 1);
}

pysim_status pysim_check_pool(const pysim_pool *p, const void *x, const void *y) {
    const int64_t sizes[] = {p->planes,   p->height,   p->width,    p->out_h,      p->out_w,     p->kernel_h,
                             p->kernel_w, p->stride_h, p->stride_w, p->dilation_h, p->dilation_w};
    const int64_t element = pysim_dtype_bytes(p->dtype), pads[] = {p->pad_top, p->pad_left, p->pad_bottom, p->pad_right};
    pysim_status status = pysim_check_positive("a pool's planes, height, width, out_h, out_w, kernel, stride and dilation", sizes, 11);
    for (int i = 0; i < 4 && status == PYSIM_OK; i++)
        if (pads[i] < 0) status = pysim_fail(PYSIM_BAD_ARGUMENT, "a pool's padding %d is %lld; expected at least 0", i, (long long)pads[i]);
    const int64_t in[] = {p->planes, p->height, p->width, element}, out[] = {p->planes, p->out_h, p->out_w, element};
    int64_t in_bytes = 0, out_bytes = 0, last_h, last_w, end_h, end_w;
    if (status == PYSIM_OK && (p->block < 0 || (p->block > 1 && p->planes % p->block)))
        status = pysim_fail(PYSIM_BAD_ARGUMENT, "a pool's block is %d; expected 0 (planes) or a divisor of its %lld planes", (int)p->block,
                            (long long)p->planes);
    if (status == PYSIM_OK) status = pysim_product("a pool's input, planes x height x width x element", 4, in, &in_bytes);
    if (status == PYSIM_OK) status = pysim_product("a pool's output, planes x out_h x out_w x element", 4, out, &out_bytes);
    if (status != PYSIM_OK) return status;
    if (__builtin_mul_overflow(p->out_h - 1, p->stride_h, &last_h) || __builtin_mul_overflow(p->out_w - 1, p->stride_w, &last_w) ||
        __builtin_add_overflow(p->height, p->pad_top, &end_h) || __builtin_add_overflow(p->width, p->pad_left, &end_w) ||
        __builtin_add_overflow(end_h, p->pad_bottom, &end_h) || __builtin_add_overflow(end_w, p->pad_right, &end_w))
        return pysim_fail(PYSIM_OVERFLOW, "a pool's windows exceed int64");
    if (last_h >= end_h || last_w >= end_w)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "the last window begins at row %lld and column %lld of a padded image of %lld x %lld",
                          (long long)last_h, (long long)last_w, (long long)end_h, (long long)end_w);
    int64_t reach_h, reach_w; /* bottom and right end of the last window */
    if (__builtin_mul_overflow(p->dilation_h, p->kernel_h, &reach_h) || __builtin_mul_overflow(p->dilation_w, p->kernel_w, &reach_w) ||
        __builtin_add_overflow(end_h, reach_h, &reach_h) || __builtin_add_overflow(end_w, reach_w, &reach_w))
        return pysim_fail(PYSIM_OVERFLOW, "a pool's windows exceed int64");
    status = pysim_check_operand("x", x, p->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("y", y, p->dtype);
    const pysim_span spans[] = {{"y", y, out_bytes, 1}, {"x", x, in_bytes, 0}};
    return status == PYSIM_OK ? pysim_check_apart(spans, 2) : status;
}

typedef struct {
    const pysim_pool *pool;
    const pysim_loops *loops;
    const char *x;
    char *y;
} pool_run;

static void pool_planes(const void *operator, int64_t begin, int64_t end) {
    const pool_run *r = operator;
    const int64_t bytes = pysim_dtype_bytes(r->pool->dtype);
    pysim_pool some = *r->pool;
    some.planes = end - begin;
    r->loops->pool(&some, r->x + begin * some.height * some.width * bytes, r->y + begin * some.out_h * some.out_w * bytes);
}

pysim_status pysim_share_pool(const pysim_pool *p, const void *x, void *y, int32_t threads) {
    pool_run r = {.pool = p, .x = x, .y = y};
    if (!p) return pysim_fail(PYSIM_BAD_ARGUMENT, "the pool is NULL");
    pysim_status status = pysim_loops_of_values(p->dtype, &r.loops);
    if (status == PYSIM_OK && p->dtype == PYSIM_BF16 && p->block <= 1)
        status = pysim_fail(PYSIM_UNSUPPORTED, "dtype is bf16, and a pool's block %d; of bf16 pools are in blocks", (int)p->block);
    if (status == PYSIM_OK) status = pysim_check_pool(p, x, y);
    if (status != PYSIM_OK) return status;
    pysim_share_items(p->planes, p->block, p->height * p->width * pysim_dtype_bytes(p->dtype), threads, pool_planes, &r);
    return PYSIM_OK;
}

pysim_status pysim_run_pool(const pysim_pool *p, const void *x, void *y) { return pysim_share_pool(p, x, y, 1); }

/* The type of planes: blocks of bf16 become floats. */
static int32_t planes_of(const pysim_reorder *r) { return r->dtype == PYSIM_BF16 ? PYSIM_F32 : r->dtype; }

static pysim_status check_reorder(const pysim_reorder *r, const void *x, const void *y) {
    const int64_t wide = pysim_dtype_bytes(planes_of(r)), narrow = pysim_dtype_bytes(r->dtype);
    const int64_t sizes[] = {r->planes, r->size, r->block}, all[] = {r->planes, r->size, wide};
    int64_t bytes = 0;
    pysim_status status = pysim_check_positive("a reordering's planes, size and block", sizes, 3);
    if (status == PYSIM_OK && r->planes % r->block)
        status = pysim_fail(PYSIM_BAD_ARGUMENT, "%lld planes are not a multiple of the block, %d", (long long)r->planes, (int)r->block);
    if (status == PYSIM_OK) status = pysim_product("a reordering's bytes, planes x size x element", 3, all, &bytes);
    if (status == PYSIM_OK && wide != narrow && r->block > PIECE)
        status = pysim_fail(PYSIM_UNSUPPORTED, "a reordering of bf16 has blocks of %d; expected at most %d", (int)r->block, (int)PIECE);
    if (status == PYSIM_OK) status = pysim_check_operand("x", x, r->to_planes ? r->dtype : planes_of(r));
    if (status == PYSIM_OK) status = pysim_check_operand("y", y, r->to_planes ? planes_of(r) : r->dtype);
    const int64_t blocks = bytes / wide * narrow;
    const pysim_span spans[] = {{"y", y, r->to_planes ? bytes : blocks, 1}, {"x", x, r->to_planes ? blocks : bytes, 0}};
    return status == PYSIM_OK ? pysim_check_apart(spans, 2) : status;
}

/* Floats in planes to bf16 in blocks, or back, `PIECE` numbers at a time. */
static void reorder_narrow(const pysim_reorder *of, const char *x, char *y) {
    _Alignas(64) float some[PIECE];
    const pysim_loops *wide = pysim_loops_for(PYSIM_F32), *narrow = pysim_loops_for(of->dtype);
    const int64_t block = of->block, most = PIECE / block, bytes = pysim_dtype_bytes(of->dtype), size = of->size;
    for (int64_t i = 0, count; i < size; i += count) {
        count = pysim_min(most, size - i);
        if (of->to_planes) {
            narrow->widen(x + i * block * bytes, count * block, some);
            wide->transpose(some, block, block, count, (float *)(void *)y + i, size);
        } else {
            wide->transpose((const float *)(const void *)x + i, size, count, block, some, block);
            narrow->narrow(some, count * block, y + i * block * bytes);
        }
    }
}

typedef struct {
    const pysim_reorder *of;
    const char *x;
    char *y;
} reorder_run;

static void reorder_planes(const void *operator, int64_t begin, int64_t end) {
    const reorder_run *r = operator;
    const pysim_pack_transposed transposed = pysim_transposer_for(r->of->dtype);
    const int64_t block = r->of->block, size = r->of->size, bytes = size * pysim_dtype_bytes(r->of->dtype);
    const int64_t rows = r->of->to_planes ? size : block;
    for (int64_t k = begin; k < end; k += block) {
        if (r->of->dtype == PYSIM_S8) {
            const uint8_t *x = (const uint8_t *)r->x + k * size;
            pysim_integers_here()->transposed(rows, block + size - rows, x, (uint8_t *)r->y + k * size);
            continue;
        }
        if (r->of->dtype == PYSIM_BF16) {
            const int64_t wide = size * (int64_t)sizeof(float);
            reorder_narrow(r->of, r->x + k * (r->of->to_planes ? bytes : wide), r->y + k * (r->of->to_planes ? wide : bytes));
            continue;
        }
        if (r->of->to_planes) transposed(r->x + k * bytes, block, size, block, size, r->y + k * bytes, NULL);
        else transposed(r->x + k * bytes, size, block, size, block, r->y + k * bytes, NULL);
    }
}

pysim_status pysim_share_reorder(const pysim_reorder *of, const void *x, void *y, int32_t threads) {
    reorder_run r = {.of = of, .x = x, .y = y};
    const pysim_loops *loops;
    if (!of) return pysim_fail(PYSIM_BAD_ARGUMENT, "the reordering is NULL");
    pysim_status status = of->dtype == PYSIM_S8 ? PYSIM_OK : pysim_loops_of_values(of->dtype, &loops);
    if (status == PYSIM_OK) status = check_reorder(of, x, y);
    if (status != PYSIM_OK) return status;
    pysim_share_items(of->planes, of->block, of->size * pysim_dtype_bytes(of->dtype), threads, reorder_planes, &r);
    return PYSIM_OK;
}

pysim_status pysim_run_reorder(const pysim_reorder *r, const void *x, void *y) { return pysim_share_reorder(r, x, y, 1); }

enum { MAX_AXES = 6 }; /* axes of a copy */

/* Bytes from the first element to the end of the last. */
static pysim_status extent(const char *what, const pysim_copy *c, const int64_t *apart, int64_t *bytes) {
    int64_t last = 0;
    for (int32_t i = 0; i < c->axes; i++) {
        int64_t along;
        if (__builtin_mul_overflow(c->sizes[i] - 1, apart[i], &along) || __builtin_add_overflow(last, along, &last))
            return pysim_fail(PYSIM_OVERFLOW, "%s exceeds int64", what);
    }
    const int64_t all[] = {last + (last < INT64_MAX), pysim_dtype_bytes(c->dtype)};
    return pysim_product(what, 2, all, bytes);
}

static pysim_status check_copy(const pysim_copy *c, const void *x, const void *y) {
    if (c->axes < 1 || c->axes > MAX_AXES)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "a copy has %d axes; expected 1 to %d", (int)c->axes, MAX_AXES);
    int64_t read = 0, written = 0;
    pysim_status status = pysim_check_positive("a copy's sizes", c->sizes, c->axes);
    if (status == PYSIM_OK) status = pysim_check_positive("a copy's steps in y", c->to, c->axes);
    for (int32_t i = 0; i < c->axes && status == PYSIM_OK; i++)
        if (c->from[i] < 0)
            status = pysim_fail(PYSIM_BAD_ARGUMENT, "a copy's step %d in x is %lld; expected at least 0", (int)i, (long long)c->from[i]);
    if (status == PYSIM_OK) status = extent("a copy's input", c, c->from, &read);
    if (status == PYSIM_OK) status = extent("a copy's output", c, c->to, &written);
    if (status == PYSIM_OK) status = pysim_check_operand("x", x, c->dtype);
    if (status == PYSIM_OK) status = pysim_check_operand("y", y, c->dtype);
    const pysim_span spans[] = {{"y", y, written, 1}, {"x", x, read, 0}};
    return status == PYSIM_OK ? pysim_check_apart(spans, 2) : status;
}

/* Copies elements of 1, 4 or 8 bytes with given distances in bytes. */
static void copy_elements(const char *x, int64_t from, char *y, int64_t to, int64_t count, int64_t bytes) {
    if (bytes == 4 && from == 0 && to == 4) { /* one element repeated */
        uint32_t one;
        memcpy(&one, x, 4);
        for (int64_t i = 0; i < count; i++) memcpy(y + 4 * i, &one, 4);
    } else if (bytes == 4)
        for (int64_t i = 0; i < count; i++) memcpy(y + i * to, x + i * from, 4);
    else if (bytes == 1)
        for (int64_t i = 0; i < count; i++) y[i * to] = x[i * from];
    else
        for (int64_t i = 0; i < count; i++) memcpy(y + i * to, x + i * from, 8);
}

/* `count` runs of a few bytes, a multiple of RUN. A call of memcpy for each takes twice as long (75,288 runs of 32 bytes: 426 and 200 us). */
enum { RUN = 16, SHORT_RUN = 128 };
static void copy_runs(const char *x, int64_t from, char *y, int64_t to, int64_t count, int64_t run) {
    for (int64_t i = 0; i < count; i++, x += from, y += to)
        for (int64_t k = 0; k < run; k += RUN) memcpy(y + k, x + k, RUN);
}

/* y[i][c] = x[c][i] of bytes in squares that fit into a few cache lines. */
static void transpose_bytes(const char *x, int64_t from, int64_t rows, int64_t columns, char *y, int64_t to) {
    enum { SIDE = 16 };
    for (int64_t i = 0; i < rows; i += SIDE)
        for (int64_t c = 0; c < columns; c += SIDE)
            for (int64_t k = i; k < pysim_min(rows, i + SIDE); k++)
                for (int64_t j = c; j < pysim_min(columns, c + SIDE); j++) y[k * to + j] = x[j * from + k];
}

/* y[i][c] = x[c][i] of few columns, such as the phases of a stride: transpositions in squares would be mostly empty. */
typedef uint32_t __attribute__((may_alias)) word;
typedef uint64_t __attribute__((may_alias)) long_word;
#define DEFINE_INTERLEAVE(name, type)                                                                                                  \
    static inline __attribute__((always_inline)) void name##_of(const type *restrict x, int64_t from, int64_t rows, const int columns, \
                                                                type *restrict y, int64_t to) {                                        \
        for (int64_t i = 0; i < rows; i++)                                                                                             \
            for (int c = 0; c < columns; c++) y[i * to + c] = x[c * from + i];                                                         \
    }                                                                                                                                  \
    static void name(const void *x, int64_t from, int64_t rows, int64_t columns, void *y, int64_t to) {                                \
        if (columns == 2 && to == 2) name##_of(x, from, rows, 2, y, 2);                                                                \
        else if (columns == 4 && to == 4) name##_of(x, from, rows, 4, y, 4);                                                           \
        else if (columns == 2) name##_of(x, from, rows, 2, y, to);                                                                     \
        else if (columns == 3) name##_of(x, from, rows, 3, y, to);                                                                     \
        else name##_of(x, from, rows, 4, y, to);                                                                                       \
    }
DEFINE_INTERLEAVE(interleave_words, word)
DEFINE_INTERLEAVE(interleave_long_words, long_word)
enum { FEW_COLUMNS = 4 };

static void copy_axes(const pysim_copy *c, const pysim_loops *loops, int32_t axis, const char *x, char *y, int64_t bytes) {
    const int64_t size = c->sizes[axis], from = c->from[axis], to = c->to[axis];
    if (axis + 1 == c->axes) {
        if (from == 1 && to == 1) memcpy(y, x, (size_t)(size * bytes));
        else copy_elements(x, from * bytes, y, to * bytes, size, bytes);
        return;
    }
    const int64_t run = axis + 2 == c->axes && c->from[axis + 1] == 1 && c->to[axis + 1] == 1 ? c->sizes[axis + 1] * bytes : 0;
    if (run && run <= SHORT_RUN && run % RUN == 0) {
        copy_runs(x, from * bytes, y, to * bytes, size, run);
        return;
    }
    if (axis + 2 == c->axes && from == 1 && c->from[axis + 1] > 1 && c->to[axis + 1] == 1) {
        if (loops && c->sizes[axis + 1] <= FEW_COLUMNS && bytes == 4)
            interleave_words(x, c->from[axis + 1], size, c->sizes[axis + 1], y, to);
        else if (loops && c->sizes[axis + 1] <= FEW_COLUMNS) interleave_long_words(x, c->from[axis + 1], size, c->sizes[axis + 1], y, to);
        else if (loops) loops->transpose(x, c->from[axis + 1], size, c->sizes[axis + 1], y, to);
        else transpose_bytes(x, c->from[axis + 1], size, c->sizes[axis + 1], y, to);
        return;
    }
    for (int64_t i = 0; i < size; i++) copy_axes(c, loops, axis + 1, x + i * from * bytes, y + i * to * bytes, bytes);
}

/* The axis of a copy that threads share: the longest, but not the last, along which elements move together, if there is another. */
static int32_t shared_axis(const int64_t *sizes, int32_t axes) {
    int32_t longest = 0;
    for (int32_t i = 1; i < axes - 1; i++)
        if (sizes[i] > sizes[longest]) longest = i;
    return longest;
}

typedef struct {
    const pysim_copy *of;
    const pysim_loops *loops;
    const char *x;
    char *y;
    int32_t axis;
} copy_run;

/* Elements begin..end of the shared axis. */
static void copy_range(const void *operator, int64_t begin, int64_t end) {
    const copy_run *r = operator;
    const int64_t bytes = pysim_dtype_bytes(r->of->dtype);
    pysim_copy some = *r->of;
    some.sizes[r->axis] = end - begin;
    copy_axes(&some, r->loops, 0, r->x + begin * some.from[r->axis] * bytes, r->y + begin * some.to[r->axis] * bytes, bytes);
}

pysim_status pysim_share_copy(const pysim_copy *c, const void *x, void *y, int32_t threads) {
    copy_run r = {.of = c, .x = x, .y = y}; /* bytes need no loops */
    if (!c) return pysim_fail(PYSIM_BAD_ARGUMENT, "the copy is NULL");
    pysim_status status = c->dtype == PYSIM_S8 ? PYSIM_OK : pysim_loops_of(c->dtype, &r.loops);
    if (status == PYSIM_OK) status = check_copy(c, x, y);
    if (status != PYSIM_OK) return status;
    int64_t each = pysim_dtype_bytes(c->dtype);
    r.axis = shared_axis(c->sizes, c->axes);
    for (int32_t i = 0; i < c->axes; i++) each *= i == r.axis ? 1 : c->sizes[i];
    pysim_share_items(c->sizes[r.axis], 1, each, threads, copy_range, &r);
    return PYSIM_OK;
}

pysim_status pysim_run_copy(const pysim_copy *c, const void *x, void *y) { return pysim_share_copy(c, x, y, 1); }
