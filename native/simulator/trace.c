/* SPDX-License-Identifier: Apache-2.0
 * The exact memory accesses of a plan. The macro-kernel (native/algorithms) runs with stubs in place of the row's micro-kernel and packing; the stubs
 * record addresses. Loops, tiles, skipped kernel rows and panel addresses are those of a run because the code is the same. Only the row's functions
 * are modelled here, access by access and in order:
 *
 *   micro-kernel (x86/lanes.h, x86/outer_*.c, portable.c): each k-iteration reads the operand along the lanes, one vector at a time, then the
 *     broadcast operand, element by element (outer: filters, then windows, four at a time). At the end each vector of each output row is
 *     read if beta != 0, and written. The portable rows read the windows of an edge tile again for each filter.
 *   packing (x86/pack.h, portable.c): the same choice of routine, the same vectors.
 *
 * A vector has lane_windows * lane_filters elements; portable rows have vectors of one. A masked vector is one access of its active bytes, or
 * no access if no lane is active. The mma rows (power10) have vectors of 16 bytes and load two at once in a whole tile of f32 or f64. Where they take
 * two or four k-iterations together, the trace has them one by one, and their packing is traced as x86's: the same bytes in nearly the same
 * order. A trace does not contain the stack (a fil kernel's tile before its transposed store) and the bias. Tags follow buffers: filters of a
 * convolution, packed before the run, are `filter`; a product's B packed before the run is `input`; panels in the workspace are `packed_*`. */
#include <string.h>

#include "algorithms/algorithm.h"

enum { CHUNK = 4096, STEP = 128 };
enum { INPUT = 1, FILTER, OUTPUT, PACKED_INPUT, PACKED_FILTER, COLUMNS, PACK = 1 << 4, COMPUTE = 2 << 4, STORE = 3 << 4 };

typedef struct {
    pysim_trace_sink sink;
    void *context;
    pysim_nest nest;          /* the original nest, with its row and its packing */
    int64_t bytes, out_bytes; /* per element: of operands and panels; of the output */
    int64_t lanes;            /* elements of a vector */
    int mma;                  /* a row of that target */
    int image;                /* tag of the operand that the windows are packed from */
    int read, written;        /* tags of the current packing call */
    int windows, filters;     /* tags of the micro-kernel's operands */
    int64_t n;
    int64_t address[CHUNK];
    int32_t size[CHUNK];
    uint8_t is_write[CHUNK], tag[CHUNK];
} tracer;

/* The row's functions have no context argument, so the tracer is kept here while the loops run. */
static _Thread_local tracer *active;

static void deliver(tracer *t) {
    if (t->n > 0) t->sink(t->context, t->n, t->address, t->size, t->is_write, t->tag);
    t->n = 0;
}

static inline void emit_bytes(tracer *t, int64_t address, int64_t bytes, int is_write, int tag) {
    if (t->n == CHUNK) deliver(t);
    t->address[t->n] = address;
    t->size[t->n] = (int32_t)bytes;
    t->is_write[t->n] = (uint8_t)is_write;
    t->tag[t->n++] = (uint8_t)tag;
}

static inline void emit(tracer *t, int64_t address, int64_t elements, int is_write, int tag) {
    emit_bytes(t, address, elements * t->bytes, is_write, tag);
}

/* ---- micro-kernels ---- */

/* The reads of one k-iteration, and the distance from each to the next iteration's. */
typedef struct {
    int32_t n;
    int64_t address[STEP], forward[STEP];
    int32_t size[STEP];
    uint8_t is_write[STEP], tag[STEP];
} k_step;

static void step_reads(k_step *s, const tracer *t, const void *from, int64_t count, int64_t width, int64_t apart, int64_t pitch, int tag) {
    for (int64_t i = 0; i < count; i += width, s->n++) {
        s->address[s->n] = (int64_t)(intptr_t)from + i * apart * t->bytes;
        s->forward[s->n] = pitch * t->bytes;
        s->size[s->n] = (int32_t)(pysim_min(width, count - i) * t->bytes);
        s->is_write[s->n] = 0;
        s->tag[s->n] = (uint8_t)tag;
    }
}

static void emit_steps(tracer *t, k_step *s, int64_t k) {
    for (int64_t p = 0; p < k; p++) {
        if (t->n + s->n > CHUNK) deliver(t);
        int64_t *address = t->address + t->n;
        memcpy(address, s->address, (size_t)s->n * sizeof *address);
        memcpy(t->size + t->n, s->size, (size_t)s->n * sizeof *s->size);
        memcpy(t->is_write + t->n, s->is_write, (size_t)s->n);
        memcpy(t->tag + t->n, s->tag, (size_t)s->n);
        for (int32_t i = 0; i < s->n; i++) s->address[i] += s->forward[i];
        t->n += s->n;
    }
}

/* Store of `elements` results of row j, starting at window i. */
static void emit_store(tracer *t, void *out, int64_t out_pitch, int64_t i, int64_t j, int64_t elements, int reads_old) {
    const int64_t to = (int64_t)(intptr_t)out + (j * out_pitch + i) * t->out_bytes, bytes = elements * t->out_bytes;
    if (reads_old) emit_bytes(t, to, bytes, 0, OUTPUT | STORE);
    emit_bytes(t, to, bytes, 1, OUTPUT | STORE);
}

/* Filters are in a panel, or (`strided`) in place: `filter_step` apart in rows that are `filter_pitch` apart. */
static void trace_tile(int strided, int64_t k, const void *filters, int64_t filter_pitch, int64_t filter_step, const void *windows,
                       int64_t window_pitch, void *out, int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *store) {
    tracer *t = active;
    const pysim_kernel_info *row = &t->nest.row.info;
    const int win = row->lane_filters == 1, fil = !win && row->lane_windows == 1, reads_old = store->old != NULL;
    /* Panels are padded to whole tiles; only a win kernel, which broadcasts filters one by one, does not read the padding. */
    const int64_t groups = fil ? t->lanes : row->lane_filters;
    const int64_t all = strided || (win && t->lanes > 1) ? nf : row->filters;
    const int64_t read_filters = fil || (t->mma && t->bytes >= 4) ? pysim_ceil_div(nf, groups) * groups : all;
    const int64_t pair = t->bytes >= 4 && nw == row->windows ? 2 : 1, mma_width = pair * t->lanes;
    k_step step;
    step.n = 0;
    if (t->lanes == 1 && (nw < row->windows || all < row->filters)) {
        for (int64_t j = 0; j < all; j++) {
            step_reads(&step, t, (const char *)filters + j * filter_step * t->bytes, 1, 1, 1, filter_pitch, t->filters);
            step_reads(&step, t, windows, nw, 1, 1, window_pitch, t->windows);
        }
    } else {
        if (win) step_reads(&step, t, windows, nw, row->lane_windows, 1, window_pitch, t->windows);
        step_reads(&step, t, filters, read_filters, t->mma ? mma_width : row->lane_filters, filter_step, filter_pitch, t->filters);
        if (!win) step_reads(&step, t, windows, nw, t->mma ? mma_width : row->lane_windows, 1, window_pitch, t->windows);
    }
    emit_steps(t, &step, k);

    const int64_t width = fil ? t->lanes : row->lane_windows;
    if (fil) { /* transposed in registers, lanes x lanes at a time */
        for (int64_t i = 0; i < nw; i += width)
            for (int64_t j = 0; j < nf; j++) emit_store(t, out, out_pitch, i, j, pysim_min(width, nw - i), reads_old);
    } else {
        for (int64_t j = 0; j < nf; j++)
            for (int64_t i = 0; i < nw; i += width) emit_store(t, out, out_pitch, i, j, pysim_min(width, nw - i), reads_old);
    }
}

static void trace_run(int64_t k, const void *filters, const void *windows, int64_t window_pitch, void *out, int64_t out_pitch, int64_t nw,
                      int64_t nf, const pysim_store *store) {
    trace_tile(0, k, filters, active->nest.row.info.filters, 1, windows, window_pitch, out, out_pitch, nw, nf, store);
}

static void trace_strided(int64_t k, const void *filters, int64_t filter_pitch, int64_t filter_step, const void *windows,
                          int64_t window_pitch, void *out, int64_t out_pitch, int64_t nw, int64_t nf, const pysim_store *store) {
    trace_tile(1, k, filters, filter_pitch, filter_step, windows, window_pitch, out, out_pitch, nw, nf, store);
}

/* ---- packing ---- */

/* One channel of a segment. */
typedef struct {
    tracer *t;
    const pysim_segment *s;
    int64_t row, to;
} channel;

static void write(const channel *c, int64_t tap, int64_t j, int64_t elements) {
    emit(c->t, c->to + (tap * c->s->pitch + j) * c->t->bytes, elements, 1, c->t->written);
}

/* One access to the columns of [column, column + count) that are inside the row. */
static void read(const channel *c, int64_t column, int64_t count) {
    const int64_t lo = pysim_max(0, column), hi = pysim_min(c->s->width, column + count);
    if (hi > lo) emit(c->t, c->row + lo * c->t->bytes, hi - lo, 0, c->t->read);
}

/* One vector of the row; only its first `needed` elements are used. */
static void read_vector(const channel *c, int64_t column, int64_t needed) { read(c, column, pysim_min(c->t->lanes, needed)); }

static void zero(const channel *c) {
    for (int64_t tap = 0; tap < c->s->taps; tap++)
        for (int64_t j = 0; j < c->s->count; j += c->t->lanes) write(c, tap, j, pysim_min(c->t->lanes, c->s->count - j));
}

static void scalar(const channel *c) {
    const pysim_segment *s = c->s;
    for (int64_t tap = 0; tap < s->taps; tap++)
        for (int64_t j = 0; j < s->count; j++) {
            read(c, s->first + j * s->stride + tap * s->dilation, 1);
            write(c, tap, j, 1);
        }
}

/* One tap of stride 1, by vectors. */
static void rows(const channel *c) {
    const pysim_segment *s = c->s;
    for (int64_t j = 0; j < s->count; j += c->t->lanes) {
        read_vector(c, s->first + j, s->count - j);
        write(c, 0, j, pysim_min(c->t->lanes, s->count - j));
    }
}

static void chain(const channel *c) {
    const pysim_segment *s = c->s;
    const int64_t lanes = c->t->lanes, needed = s->count + s->taps - 1;
    read_vector(c, s->first, needed);
    for (int64_t j = 0; j < s->count; j += lanes) {
        read_vector(c, s->first + j + lanes, needed - j - lanes);
        for (int64_t tap = 0; tap < s->taps; tap++) write(c, tap, j, pysim_min(lanes, s->count - j));
    }
}

static void phases(const channel *c) {
    const pysim_segment *s = c->s;
    const int64_t lanes = c->t->lanes, needed = (s->count - 1) * s->stride + s->taps;
    const int64_t lag = s->taps > s->stride ? lanes : 0; /* windows j.. are written after the vectors behind them are read */
    for (int64_t j = -lag; j < s->count; j += lanes) {
        for (int64_t v = 0; v < s->stride; v++) {
            const int64_t ahead = (j + lag) * s->stride + v * lanes;
            read_vector(c, s->first + ahead, needed - ahead);
        }
        for (int64_t phase = 0; j >= 0 && phase < pysim_min(s->stride, s->taps); phase++)
            for (int64_t tap = phase; tap < s->taps; tap += s->stride) write(c, tap, j, pysim_min(lanes, s->count - j));
    }
}

/* Windows j.. of taps tap0.., as many as fit one mask table. */
static void strided(const channel *c, int64_t j, int64_t tap0, int64_t taps) {
    const pysim_segment *s = c->s;
    const int64_t n = pysim_min(c->t->lanes, s->count - j), needed = (n - 1) * s->stride + 1;
    for (int64_t tap = tap0; tap < tap0 + taps; tap++) {
        for (int64_t i = 0; i < needed; i += c->t->lanes) read_vector(c, s->first + j * s->stride + tap * s->dilation + i, needed - i);
        write(c, tap, j, n);
    }
}

/* The portable chain: a block of a row is copied to a buffer on the stack, and from there once per tap. */
static void copies(const channel *c) {
    enum { LINE = 512 };
    const pysim_segment *s = c->s;
    const int64_t block = pysim_min(s->count, LINE - s->taps + 1);
    for (int64_t j = 0; j < s->count; j += block) {
        const int64_t n = pysim_min(block, s->count - j);
        read(c, s->first + j, n + s->taps - 1);
        for (int64_t tap = 0; tap < s->taps; tap++) write(c, tap, j, n);
    }
}

static void each_channel(channel c, void (*algorithm)(const channel *c)) {
    for (int64_t i = 0; i < c.s->channels; i++, c.row += c.s->row_channel * c.t->bytes, c.to += c.s->dst_channel * c.t->bytes)
        algorithm(&c);
}

static void each_strided(channel first) {
    enum { MASK_TABLE = 128 };
    const pysim_segment *s = first.s;
    const int64_t block = MASK_TABLE / s->stride;
    for (int64_t j = 0; j < s->count; j += first.t->lanes)
        for (int64_t tap = 0; tap < s->taps; tap += block) {
            channel c = first;
            for (int64_t i = 0; i < s->channels; i++, c.row += s->row_channel * c.t->bytes, c.to += s->dst_channel * c.t->bytes)
                strided(&c, j, tap, pysim_min(block, s->taps - tap));
        }
}

static void trace_segment(const pysim_segment *s, void *dst) {
    enum { CHAIN = 8, PHASES = 4, GATHER_MAX = 16 };
    tracer *t = active;
    const channel c = {t, s, (int64_t)(intptr_t)s->row, (int64_t)(intptr_t)dst};
    const int portable = t->lanes == 1, dense = s->dilation == 1, short_run = s->count <= CHAIN * t->lanes;
    if (s->row == NULL) each_channel(c, zero);
    else if (portable) each_channel(c, s->stride == 1 && dense && s->taps <= 256 ? copies : scalar);
    else if (s->stride == 1 && s->taps == 1 && short_run && !t->mma) each_channel(c, rows);
    else if (s->stride == 1 && dense && s->taps - 1 <= t->lanes && short_run) each_channel(c, chain);
    else if (s->stride > 1 && s->stride <= PHASES && dense && (s->taps - 1) / s->stride <= t->lanes && short_run) each_channel(c, phases);
    else if (s->stride <= GATHER_MAX) each_strided(c);
    else each_channel(c, scalar);
}

/* Blocks of lanes x lanes; element by element if there is one lane. */
static void trace_transposed(const void *src, int64_t ld, int64_t rows, int64_t k, int64_t pitch, void *dst, int *not_finite) {
    (void)not_finite;
    tracer *t = active;
    const int64_t from = (int64_t)(intptr_t)src, to = (int64_t)(intptr_t)dst;
    for (int64_t p = 0; p < k; p += t->lanes)
        for (int64_t i = 0; i < pitch; i += t->lanes) {
            const int64_t depth = pysim_min(t->lanes, k - p), width = pysim_min(t->lanes, pitch - i);
            for (int64_t l = 0; l < t->lanes && i + l < rows; l++) emit(t, from + ((i + l) * ld + p) * t->bytes, depth, 0, t->read);
            for (int64_t l = 0; l < depth; l++) emit(t, to + ((p + l) * pitch + i) * t->bytes, width, 1, t->written);
        }
}

static void trace_pack_windows(const pysim_nest *n, int64_t c0, int64_t nc, int64_t t0, int64_t nw, int64_t r0, int64_t r1, void *dst) {
    active->read = active->image | PACK;
    active->written = PACKED_INPUT | PACK;
    active->nest.pack_windows(n, c0, nc, t0, nw, r0, r1, dst);
}

static void trace_pack_filters(const pysim_nest *n, int64_t c0, int64_t nc, int64_t f0, int64_t nf, void *dst) {
    active->read = FILTER | PACK;
    active->written = PACKED_FILTER | PACK;
    active->nest.pack_filters(n, c0, nc, f0, nf, dst);
}

/* ---- the ABI ---- */

static void install_stubs(pysim_nest *n) {
    tracer *t = active;
    t->nest = *n;
    t->read = INPUT | PACK, t->written = COLUMNS | PACK; /* packing before the loops */
    if (n->reads_columns) t->image = COLUMNS;
    t->bytes = n->bytes;
    t->out_bytes = n->out_bytes;
    t->mma = strcmp(n->row.info.target, "mma") == 0;
    t->lanes = t->mma ? 16 / n->bytes : (int64_t)n->row.info.lane_windows * n->row.info.lane_filters;
    t->windows = (n->schedule.pack == PYSIM_PACK_NONE || n->windows_packed ? t->image : PACKED_INPUT) | COMPUTE;
    t->filters = (n->pack_filters ? PACKED_FILTER : FILTER) | COMPUTE;
    n->row.run = trace_run;
    n->traced = 1;
    n->row.strided = trace_strided;
    n->row.enter = n->row.leave = NULL;
    n->row.pack = n->row.pack_filters = (pysim_packer){trace_segment, trace_transposed};
    n->pack_windows = trace_pack_windows;
    if (n->pack_filters) n->pack_filters = trace_pack_filters;
}

static pysim_status check_trace(const pysim_trace_bases *at, pysim_trace_sink sink) {
    if (!at) return pysim_fail(PYSIM_BAD_ARGUMENT, "the bases of the trace are NULL");
    if (!sink) return pysim_fail(PYSIM_BAD_ARGUMENT, "the sink of the trace is NULL");
    const int64_t all[] = {at->input, at->filters, at->output, at->workspace, at->columns};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] < 0 || all[i] >> 56)
            return pysim_fail(PYSIM_BAD_ARGUMENT, "base %lld of the trace; addresses lie in 0..2^56-1", (long long)all[i]);
    return PYSIM_OK;
}

static void *place(int64_t address) { return (void *)(intptr_t)address; }

pysim_status pysim_trace(const pysim_problem *p, const pysim_schedule *s, const pysim_trace_bases *at, pysim_trace_sink sink,
                         void *context) {
    pysim_status status = check_trace(at, sink);
    if (status != PYSIM_OK) return status;
    const int product = p && p->kind == PYSIM_GEMM, columns = product && !at->input;
    void *const image = place(columns ? at->columns : at->input), *const filters = place(at->filters);
    tracer t, *outer = active;
    t.sink = sink, t.context = context, t.image = columns ? COLUMNS : INPUT, t.n = 0;
    active = &t;
    status =
        pysim_dry_run(p, s, install_stubs, product ? filters : image, product ? image : filters, place(at->output), place(at->workspace));
    active = outer;
    deliver(&t);
    return status;
}

/* One row of columns, for one (channel, r, s), as column_row in reference.c: element by element. */
static void column_row(tracer *t, const pysim_conv *c, int64_t p, int64_t q, int64_t plane, int64_t r, int64_t s, int64_t row) {
    for (int64_t i = 0; i < p; i++)
        for (int64_t j = 0; j < q; j++, row += t->bytes) {
            const int64_t y = i * c->stride_h + r * c->dilation_h - c->pad_top, x = j * c->stride_w + s * c->dilation_w - c->pad_left;
            if (y >= 0 && y < c->height && x >= 0 && x < c->width) emit(t, plane + (y * c->width + x) * t->bytes, 1, 0, INPUT | PACK);
            emit(t, row, 1, 1, COLUMNS | PACK);
        }
}

pysim_status pysim_im2col_trace(const pysim_conv *c, const pysim_trace_bases *at, pysim_trace_sink sink, void *context) {
    int64_t p, q, bytes;
    pysim_status status = pysim_check_conv(c, &p, &q, NULL);
    if (status == PYSIM_OK && c->depth) status = pysim_fail(PYSIM_UNSUPPORTED, "depth is %lld; im2col is of images", (long long)c->depth);
    if (status == PYSIM_OK) status = check_trace(at, sink);
    if (status != PYSIM_OK) return status;
    const int64_t channels = c->channels / c->groups, element = pysim_dtype_bytes(c->dtype);
    const int64_t size[] = {channels, c->kernel_h, c->kernel_w, p, q, element};
    status = pysim_product("the columns' bytes, channels/groups x kernel_h x kernel_w x P x Q x element", 6, size, &bytes);
    if (status != PYSIM_OK) return status;
    tracer t;
    t.sink = sink, t.context = context, t.bytes = element, t.n = 0;
    int64_t row = at->columns;
    for (int64_t ch = 0; ch < channels; ch++)
        for (int64_t r = 0; r < c->kernel_h; r++)
            for (int64_t s = 0; s < c->kernel_w; s++, row += p * q * element)
                column_row(&t, c, p, q, at->input + ch * c->height * c->width * element, r, s, row);
    deliver(&t);
    return PYSIM_OK;
}

typedef struct {
    void *state;
    pysim_status status;
    int64_t accesses;
} cache_sink;

static void to_caches(void *context, int64_t n, const int64_t *addresses, const int32_t *sizes, const uint8_t *is_write,
                      const uint8_t *tags) {
    cache_sink *s = context;
    if (s->status != PYSIM_OK) return;
    s->status = pysim_cache_access(s->state, n, addresses, sizes, is_write, tags, NULL);
    s->accesses += n;
}

static pysim_status finish(pysim_status traced, const cache_sink *s, int64_t *accesses) {
    if (traced != PYSIM_OK || s->status != PYSIM_OK) return traced != PYSIM_OK ? traced : s->status;
    if (accesses) *accesses += s->accesses;
    return PYSIM_OK;
}

pysim_status pysim_simulate(const pysim_problem *p, const pysim_schedule *s, const pysim_trace_bases *at, void *cache_state,
                            int64_t *accesses) {
    cache_sink to = {cache_state, PYSIM_OK, 0};
    return finish(pysim_trace(p, s, at, to_caches, &to), &to, accesses);
}

pysim_status pysim_im2col_simulate(const pysim_conv *c, const pysim_trace_bases *at, void *cache_state, int64_t *accesses) {
    cache_sink to = {cache_state, PYSIM_OK, 0};
    return finish(pysim_im2col_trace(c, at, to_caches, &to), &to, accesses);
}
