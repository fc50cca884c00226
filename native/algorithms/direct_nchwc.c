/* SPDX-License-Identifier: Apache-2.0
 * Direct convolution in the blocked layout (NCHWc). A tile is neighbouring pixels of an output row; the kernel broadcasts input elements from where
 * they lie, so nothing is packed, whatever the stride. The input may also be planes (an image of three channels): then the taps of a kernel row
 * are contiguous. Of bf16, planes are floats: each block of tiles copies the rows that it reads, rounded, as blocks of two channels with the
 * columns of padding as zeros. Where weights are not finite, pixels that reach into this padding are computed one by one, without it.
 *
 *   for each block of k2 tiles: for each panel of filters: for each set of channels: for each tile: KERNEL
 *
 * Filters are prepared as [group][panel][channel block][row][tap][channel][filter of the panel]. Taps that only the first and the last pixel of
 * a call have in the padding leave these out. Other taps in the padding, of a tile at the left or right edge of the image, have calls of their own
 * with only those pixels that need them: padding is not multiplied. Each tile prefetches its share of the filters that come next, because they are
 * read once, from a far level (256 -> 256 channels, 14x14, 3x3: 1131 us without, 1047 with, on a busy Zen 5). */
#include <string.h>

#include "algorithm.h"
#include "elements.h"

enum {
    LINE = 64,
    RUN_TILES = 8,    /* of a call of the kernel: their results lie in L1 for the epilogue's loops */
    LINE_CYCLES = 12, /* in which a line comes from another core's cache or a shared one, several at once */
    PAIR = 2,         /* channels of a block of copied rows */
};

typedef struct {
    const pysim_conv *conv;
    int64_t p, q;           /* output rows and pixels per row; an unpadded 1x1 convolution of stride 1 has one row of all pixels */
    int64_t lanes, inner;   /* filters per block; channels per block of the input, 1 for planes */
    int64_t blocks, set;    /* channel blocks of a group; of a channel set */
    int64_t vectors, panel; /* filter blocks of a group; of a panel */
    int64_t per_row, tiles; /* tiles */
    int64_t bytes;
} shape;

typedef struct {
    shape of;
    pysim_nchwc_kernel kernel;
    const pysim_call *call;
    int contiguous;              /* whether the taps of a kernel row are contiguous: an input of planes */
    int64_t blocks, panel_parts; /* blocks of tiles; into how many parts the panels of a block are divided */
    int64_t k2;                  /* tiles per block; 0: blocks of even sizes */
    const pysim_job *job;
    int copies, apart; /* copied rows; whether their padding must not be multiplied */
    const char *input; /* of the image and group that is computed: planes of `rows` rows from the image's row `y` on */
    int64_t rows, y;
} nchwc_run;

/* Whether rows are copied: what the kernels multiply are pairs of neighbouring channels. */
static int copies_rows(const pysim_conv *c) { return c->dtype == PYSIM_BF16 && c->input_block <= 1; }
static int64_t inner_of(const pysim_conv *c) { return c->input_block > 1 ? c->input_block : copies_rows(c) ? PAIR : 1; }

/* Unpadded 1x1 convolutions of stride 1: all pixels of the image become one row. */
static pysim_conv flattened(const pysim_conv *c) {
    pysim_conv own = *c;
    const int padded = c->pad_top || c->pad_left || c->pad_bottom || c->pad_right;
    if (c->kernel_h == 1 && c->kernel_w == 1 && c->stride_h == 1 && c->stride_w == 1 && !padded) own.width *= own.height, own.height = 1;
    return own;
}

static shape shape_of(const pysim_conv *c, const pysim_row *row, const pysim_schedule *s) {
    shape of = {.conv = c, .lanes = row->info.lane_filters, .inner = inner_of(c), .bytes = pysim_dtype_bytes(c->dtype)};
    (void)pysim_check_conv(c, &of.p, &of.q, NULL); /* checked before */
    of.blocks = pysim_ceil_div(c->channels / c->groups, of.inner);
    of.set = pysim_ceil_div(s->channels, of.inner);
    of.vectors = c->filters / c->groups / of.lanes;
    of.panel = row->info.filters / of.lanes;
    of.per_row = pysim_ceil_div(of.q, row->info.windows);
    of.tiles = of.p * of.per_row;
    return of;
}

/* Elements per panel; panels per group. */
static int64_t panel_size(const shape *of) {
    return of->blocks * of->inner * of->conv->kernel_h * of->conv->kernel_w * of->panel * of->lanes;
}
static int64_t panels_of(const shape *of) { return pysim_ceil_div(of->vectors, of->panel); }
/* Filters of a panel: the last one may have fewer. */
static int64_t width_of(const shape *of, int64_t panel) { return pysim_min(of->panel, of->vectors - panel * of->panel) * of->lanes; }

static pysim_status check_schedule(const pysim_schedule *s, const pysim_conv *c, const pysim_row *row) {
    const int64_t lanes = row->info.lane_filters, channels = c->channels / c->groups;
    if (row->family != PYSIM_FAMILY_NCHWC)
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "kernel %s does not read blocks of channels; this algorithm runs the rows of native/direct_nchwc.inc",
                          row->info.name);
    if (c->output_block != lanes || (c->input_block > 1 && c->input_block != lanes))
        return pysim_fail(PYSIM_UNSUPPORTED,
                          "input_block is %d and output_block %d; kernel %s reads blocks of %lld channels or planes, and writes "
                          "blocks of %lld",
                          (int)c->input_block, (int)c->output_block, row->info.name, (long long)lanes, (long long)lanes);
    if (s->stationary != PYSIM_INPUT_STATIONARY || s->pack != PYSIM_PACK_NONE || s->k3 != 1)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "schedule has stationary %d, pack %d, k3 %lld; this algorithm has 0, 0 and 1",
                          (int)s->stationary, (int)s->pack, (long long)s->k3);
    if (s->channels < 1 || s->channels > channels || s->k2 < 1 || (s->channels < channels && s->channels % inner_of(c)))
        return pysim_fail(PYSIM_BAD_ARGUMENT,
                          "schedule has channels %lld and k2 %lld; channels are 1..%lld, in whole blocks, and k2 is 1 or more",
                          (long long)s->channels, (long long)s->k2, (long long)channels);
    return PYSIM_OK;
}

/* Results of bf16 are rounded once: their sums have one set, and no taps but those that the first and the last pixel of a call leave out, or whose
 * padding is copied. */
static pysim_status check_rounded_once(const pysim_schedule *s, const pysim_conv *c) {
    int64_t p, q;
    (void)pysim_check_conv(c, &p, &q, NULL); /* has passed */
    const int64_t behind = (q - 1) * c->stride_w + (c->kernel_w - 1) * c->dilation_w + 1 - c->pad_left - c->width;
    const int one_set = s->channels == c->channels / c->groups, pointwise = c->kernel_h * c->kernel_w * c->stride_h * c->stride_w == 1;
    if (copies_rows(c) && pointwise && !pysim_conv_padded(c))
        return pysim_fail(PYSIM_UNSUPPORTED, "input_block is %d; of bf16 kernels of one tap and stride 1 read blocks", (int)c->input_block);
    if (one_set && (copies_rows(c) || (c->pad_left <= c->stride_w && behind <= c->stride_w))) return PYSIM_OK;
    return pysim_fail(PYSIM_UNSUPPORTED, "sums of bf16 have all channels in one set, and no more columns of padding than the stride");
}

/* Rows of the image that `tiles` tiles read, at most; bytes of a thread's copy of them and of two rows that it rounds before. */
static int64_t rows_of_tiles(const shape *of, int64_t tiles) {
    const pysim_conv *c = of->conv;
    const int64_t out = pysim_min(of->p, (tiles + of->per_row - 2) / of->per_row + 1);
    return pysim_min(c->height, (out - 1) * c->stride_h + (c->kernel_h - 1) * c->dilation_h + 1);
}
static int64_t whole_lines(int64_t bytes) { return pysim_ceil_div(bytes, 64) * 64; }
static pysim_status copied_bytes(const shape *of, int64_t width, int64_t k2, int64_t *bytes) {
    const int64_t rows = rows_of_tiles(of, pysim_min(k2, of->tiles));
    const int64_t size[] = {of->blocks, rows, of->conv->width, PAIR * of->bytes};
    const pysim_status status = pysim_product("the copied rows' bytes, channels x rows x columns x element", 4, size, bytes);
    *bytes = whole_lines(*bytes) + PAIR * whole_lines(width * of->bytes) + 64;
    return status;
}

static pysim_status open_nchwc(const pysim_problem *p, const pysim_schedule *s, pysim_row_lookup row, pysim_job *job) {
    job->own = flattened(&p->conv);
    if (copies_rows(&p->conv)) job->own.width += p->conv.pad_left + p->conv.pad_right, job->own.pad_left = job->own.pad_right = 0;
    job->nest = (pysim_nest){.problem = &job->own, .schedule = *s};
    job->thread_bytes = 64; /* nothing is kept, but a run must have a workspace */
    pysim_status status = row(s, p->conv.dtype, &job->nest.row);
    if (status == PYSIM_OK) status = check_schedule(s, &p->conv, &job->nest.row);
    if (status == PYSIM_OK && p->conv.dtype == PYSIM_BF16) status = check_rounded_once(s, &p->conv);
    if (status != PYSIM_OK) return status;
    const shape of = shape_of(&job->own, &job->nest.row, s);
    const int64_t size[] = {job->own.groups, panels_of(&of), panel_size(&of), of.bytes};
    status = pysim_product("the packed filters' bytes, groups x panels x elements x element", 4, size, &job->prepared_bytes);
    if (status == PYSIM_OK && copies_rows(&p->conv)) {
        status = copied_bytes(&of, p->conv.width, s->k2, &job->thread_bytes);
        job->prepared_bytes += 64; /* whether weights are not finite */
    }
    job->operands.second = (pysim_operand){"packed filters", p->conv.dtype, job->prepared_bytes};
    return status;
}

/* Filters of FP32 become pairs of neighbouring channels, [channel / 2][filter][2]; of an odd number of them the last one has a zero beside it. */
static void prepare_bf16(const shape *of, int64_t group, int64_t panel, const float *filters, uint16_t *to) {
    const pysim_conv *c = of->conv;
    const int64_t channels = c->channels / c->groups, taps = c->kernel_h * c->kernel_w;
    const int64_t first = panel * of->panel * of->lanes, width = width_of(of, panel);
    const float *from = filters + (group * of->vectors * of->lanes + first) * channels * taps;
    for (int64_t ch = 0; ch < of->blocks * of->inner; ch++)
        for (int64_t tap = 0; tap < taps; tap++) {
            uint16_t *pairs = to + ((ch / of->inner * taps + tap) * of->inner + ch % of->inner / 2 * 2) * width + ch % 2;
            for (int64_t f = 0; f < width; f++) pairs[2 * f] = ch < channels ? pysim_bf16_of(from[(f * channels + ch) * taps + tap]) : 0;
        }
}

#define DEFINE_PREPARE(T, name)                                                                      \
    static void name(const shape *of, int64_t group, int64_t panel, const T *filters, T *to) {       \
        const pysim_conv *c = of->conv;                                                              \
        const int64_t channels = of->blocks * of->inner, taps = c->kernel_h * c->kernel_w;           \
        const int64_t first = panel * of->panel * of->lanes, width = width_of(of, panel);            \
        const T *from = filters + (group * of->vectors * of->lanes + first) * channels * taps;       \
        for (int64_t ch = 0; ch < channels; ch++)                                                    \
            for (int64_t tap = 0; tap < taps; tap++) {                                               \
                T *row = to + ((ch / of->inner * taps + tap) * of->inner + ch % of->inner) * width;  \
                for (int64_t f = 0; f < width; f++) row[f] = from[(f * channels + ch) * taps + tap]; \
            }                                                                                        \
    }
DEFINE_PREPARE(float, prepare_f32)
DEFINE_PREPARE(double, prepare_f64)

static void prepare_nchwc(const pysim_job *job, const char *filters, char *prepared) {
    const shape of = shape_of(&job->own, &job->nest.row, &job->nest.schedule);
    const int64_t panels = panels_of(&of);
    if (copies_rows(&job->problem.conv)) memset(prepared, 0, (size_t)job->prepared_bytes); /* the last panel may have fewer filters */
    for (int64_t i = 0; i < job->own.groups * panels; i++) {
        char *to = prepared + i * panel_size(&of) * of.bytes;
        if (of.conv->dtype == PYSIM_F64)
            prepare_f64(&of, i / panels, i % panels, (const double *)(const void *)filters, (double *)(void *)to);
        else if (of.conv->dtype == PYSIM_BF16)
            prepare_bf16(&of, i / panels, i % panels, (const float *)(const void *)filters, (uint16_t *)(void *)to);
        else prepare_f32(&of, i / panels, i % panels, (const float *)(const void *)filters, (float *)(void *)to);
    }
    if (!copies_rows(&job->problem.conv)) return;
    const uint16_t *weights = (const uint16_t *)(const void *)prepared;
    int32_t marked = 0;
    for (int64_t i = 0; i < job->own.groups * panels * panel_size(&of); i++) marked |= (weights[i] & 0x7f80) == 0x7f80;
    memcpy(prepared + job->prepared_bytes - 64, &marked, sizeof marked);
}

/* A tile and a channel set: what all its kernel calls share. */
typedef struct {
    pysim_nchwc_tile call;
    int64_t pixels, x, rows; /* pixels of the tile; input column of its first pixel's first tap; kernel rows inside the image */
} tile;

/* Calls the kernel for pixels [lo, hi) and taps [s0, s1) of each kernel row; without taps it applies the epilogue only. */
static void call_kernel(const nchwc_run *r, const tile *t, int64_t lo, int64_t hi, int64_t s0, int64_t s1, int first, int last) {
    const pysim_conv *c = r->of.conv;
    const int64_t bytes = r->of.bytes, taps = s1 - s0, at = t->x + lo * c->stride_w + s0 * c->dilation_w;
    pysim_nchwc_tile call = t->call;
    if (taps == 0) call.blocks = 0;
    else call.input = (const char *)call.input + at * r->of.inner * bytes;
    call.filters = (const char *)call.filters + s0 * call.filter_tap * bytes;
    call.rows = t->rows;
    call.taps = r->contiguous ? 1 : taps;
    call.inner = r->contiguous ? taps * r->of.inner : r->of.inner;
    call.out = (char *)call.out + lo * r->of.lanes * bytes;
    call.pixels = hi - lo;
    call.first = first, call.last = last;
    if (!first) call.bias = NULL;
    call.residual = last && call.residual ? (const char *)call.residual + lo * r->of.lanes * bytes : NULL;
    r->kernel(&call);
}

/* Pixels [*lo, *hi) of the tile whose tap s is inside the image. */
static void pixels_of_tap(const pysim_conv *c, const tile *t, int64_t s, int64_t *lo, int64_t *hi) {
    const int64_t first = t->x + s * c->dilation_w, last = c->width - 1 - first;
    *lo = first >= 0 ? 0 : pysim_min(t->pixels, pysim_ceil_div(-first, c->stride_w));
    *hi = last < 0 ? *lo : pysim_max(*lo, pysim_min(t->pixels, last / c->stride_w + 1));
}

/* Adds the taps [s, s_end) of each kernel row, all in the padding for some pixels, by a call for each run of taps that the same pixels have. Returns
 * whether the accumulators have not been started yet. */
static int sum_side_taps(const nchwc_run *r, const tile *t, int64_t s, int64_t s_end, int first) {
    const pysim_conv *c = r->of.conv;
    for (int64_t end, lo, hi, next_lo, next_hi; s < s_end; s = end) {
        pixels_of_tap(c, t, s, &lo, &hi);
        for (end = s + 1; end < s_end; end++) {
            pixels_of_tap(c, t, end, &next_lo, &next_hi);
            if (next_lo != lo || next_hi != hi) break;
        }
        if (lo >= hi) continue;
        call_kernel(r, t, lo, hi, s, end, first, 0);
        if (first && lo > 0) call_kernel(r, t, 0, lo, 0, 0, 1, 0);
        if (first && hi < t->pixels) call_kernel(r, t, hi, t->pixels, 0, 0, 1, 0);
        first = 0;
    }
    return first;
}

/* The first tap >= s whose column, `at` for tap 0, is not below `bound`. */
static int64_t tap_from(const pysim_conv *c, int64_t s, int64_t at, int64_t bound) {
    while (s < c->kernel_w && at + s * c->dilation_w < bound) s++;
    return s;
}

/* Elements of an input row before and behind the image that the first and the last pixel of a kernel call may leave out. */
static int64_t spare_of(const nchwc_run *r) { return r->contiguous ? 0 : r->of.conv->stride_w; }

/* The pixels of a tile one by one, each with the taps that are inside the image, before it got its padding. */
static void sum_pixels(const nchwc_run *r, const tile *t) {
    const pysim_conv *given = &r->job->problem.conv;
    const int64_t end = given->pad_left + given->width;
    for (int64_t p = 0; p < t->pixels; p++) {
        const int64_t x = t->x + p * given->stride_w, s0 = tap_from(given, 0, x, given->pad_left), s1 = tap_from(given, s0, x, end);
        call_kernel(r, t, p, p + 1, s0, s1, 1, 1);
    }
}

/* Adds one channel set to a tile. The taps [main, main_end), of which at most the first and the last pixel lie in the padding, come last, together
 * with the epilogue. No divisions: for tiles of few channels they would take as long as a tenth of the multiply-adds. */
static void sum_set(const nchwc_run *r, tile *t, int first, int last) {
    const pysim_conv *c = r->of.conv;
    if (r->apart) {
        sum_pixels(r, t);
        return;
    }
    if (t->x >= 0 && t->x + (t->pixels - 1) * c->stride_w + (c->kernel_w - 1) * c->dilation_w < c->width) {
        call_kernel(r, t, 0, t->pixels, 0, c->kernel_w, first, last);
        return;
    }
    const int64_t spare = spare_of(r), end = t->x + (t->pixels - 1) * c->stride_w;
    const int64_t main = tap_from(c, 0, t->x + spare, 0), main_end = tap_from(c, main, end - spare, c->width);
    if (t->rows) {
        first = sum_side_taps(r, t, 0, main, first);
        first = sum_side_taps(r, t, main_end, c->kernel_w, first);
    }
    t->call.without_first = tap_from(c, main, t->x, 0) - main;
    t->call.without_last = pysim_max(0, main_end - tap_from(c, main, end, c->width));
    if (main < main_end || first || last) call_kernel(r, t, 0, t->pixels, main, main_end, first, last);
}

/* Computes tiles from i on, of one image's group, for some panels of filters and one channel set; prefetches their ranges, from `part` of `parts` on,
 * of the next set or panel. Returns how many tiles, at most `most`: those of a row of which at most the first and the last pixel reach into the
 * padding, or one. */
static int64_t run_tiles(const nchwc_run *r, int64_t image, int64_t i, int64_t most, int64_t panel, int64_t panels, int64_t set,
                         int64_t part, int64_t parts) {
    const shape *of = &r->of;
    const pysim_conv *c = of->conv;
    const int64_t row = i / of->per_row, column = i % of->per_row, map = of->p * of->q, bytes = of->bytes;
    const int64_t y = row * c->stride_h - c->pad_top;
    const int64_t spare = spare_of(r);
    const int64_t inside = c->width + c->pad_left - (c->kernel_w - 1) * c->dilation_w + spare; /* windows that begin before end inside */
    int64_t tiles = pysim_min(pysim_min(most, RUN_TILES), of->per_row - column), q0, q1, last_begin, last_end;
    pysim_split_range(of->q, column, of->per_row, &q0, &q1);
    if (q0 * c->stride_w + spare < c->pad_left) tiles = 1;
    for (; tiles > 1; tiles--) {
        pysim_split_range(of->q, column + tiles - 1, of->per_row, &last_begin, &last_end);
        if ((last_end - 1) * c->stride_w >= inside) continue;
        q1 = last_end;
        break;
    }
    int64_t r0 = 0, r1 = c->kernel_h; /* kernel rows inside the image */
    while (r0 < r1 && y + r0 * c->dilation_h < 0) r0++;
    while (r0 < r1 && y + (r1 - 1) * c->dilation_h >= c->height) r1--;
    const int64_t width = width_of(of, panel), b0 = set * of->set, plane = r->rows * c->width * of->inner;
    const int64_t filter = image * of->vectors + panel * of->panel, at = (filter * map + row * of->q + q0) * of->lanes;
    tile t = {.pixels = q1 - q0, .x = q0 * c->stride_w - c->pad_left, .rows = r1 - r0};
    t.call = (pysim_nchwc_tile){
        .blocks = t.rows ? pysim_min(of->set, of->blocks - b0) : 0,
        .block = plane,
        .row = c->dilation_h * c->width * of->inner,
        .tap = c->dilation_w * of->inner,
        .pixel = c->stride_w * of->inner,
        .filter_tap = of->inner * width,
        .filter_row = c->kernel_w * of->inner * width,
        .filter_block = c->kernel_h * c->kernel_w * of->inner * width,
        .input = r->input + b0 * plane * bytes,
        .out = r->call->result + at * bytes,
        .out_vector = map * of->lanes,
        .vectors = width / of->lanes,
        .bias = r->call->epilogue->bias,
        .residual = r->call->residual ? r->call->residual + at * bytes : NULL,
        .bounds = r->call->bounds,
        .panels = panels,
        .panel = panel_size(of),
    };
    if (t.rows) t.call.input = (const char *)t.call.input + (y + r0 * c->dilation_h - r->y) * c->width * of->inner * bytes;
    const char *filters =
        r->call->second + ((image % c->groups * panels_of(of) + panel) * panel_size(of) + b0 * t.call.filter_block) * bytes;
    t.call.filters = filters + r0 * t.call.filter_row * bytes;
    if (t.call.blocks && (b0 + of->set < of->blocks || panel + 1 < panels_of(of))) {
        const int64_t next = pysim_min(of->set, of->blocks - b0) * t.call.filter_block * bytes;
        t.call.ahead = filters + next + next / parts * part;
        t.call.ahead_lines = pysim_ceil_div(next / parts / LINE, t.call.blocks * t.rows * c->kernel_w);
    }
    const int64_t first_filter = (image % c->groups * of->vectors + panel * of->panel) * of->lanes;
    if (t.call.bias) t.call.bias = (const char *)t.call.bias + first_filter * pysim_dtype_bytes(pysim_result_dtype(c->dtype));
    const int last = b0 + of->set >= of->blocks;
    sum_set(r, &t, set == 0, last);
    if (last) pysim_finish_rows(&r->call->finish, t.call.out, t.call.out_vector, panels * t.call.vectors, t.pixels * of->lanes);
    return tiles;
}

/* Whole panels of an image of one pixel are computed together, others one by one. */
static int64_t panels_at_once(const shape *of, int64_t panel, int64_t end) {
    const pysim_conv *c = of->conv;
    const int one_pixel = c->height * c->width * c->kernel_h * c->kernel_w * of->p * of->q == 1;
    return one_pixel && panel + PYSIM_NCHWC_PANELS <= pysim_min(end, of->vectors / of->panel) ? PYSIM_NCHWC_PANELS : 1;
}

/* Copies the rows of an image's group that tiles [begin, end) read to a thread's workspace. */
static void copy_rows(nchwc_run *r, int64_t image, int64_t begin, int64_t end, char *room) {
    const pysim_conv *given = &r->job->problem.conv, *c = r->of.conv;
    const int64_t channels = given->channels / given->groups, per_row = r->of.per_row, size = given->width * (int64_t)sizeof(uint16_t);
    void (*const narrow)(const void *, int64_t, void *) = pysim_loops_for(PYSIM_BF16)->narrow;
    uint16_t *first = (uint16_t *)(void *)(room + (64 - (uintptr_t)room % 64) % 64), *second = first + whole_lines(size) / 2;
    uint16_t *to = second + whole_lines(size) / 2;
    r->y = pysim_max(0, begin / per_row * c->stride_h - c->pad_top);
    const int64_t last = (end - 1) / per_row * c->stride_h - c->pad_top + (c->kernel_h - 1) * c->dilation_h;
    r->rows = pysim_max(0, pysim_min(c->height, last + 1) - r->y);
    r->input = (const char *)to;
    for (int64_t ch = 0; ch < channels; ch += PAIR)
        for (int64_t y = r->y; y < r->y + r->rows; y++, to += PAIR * given->pad_right) {
            const int64_t at = ((image * channels + ch) * given->height + y) * given->width;
            const float *from = (const float *)(const void *)r->call->first + at;
            narrow(from, given->width, first);
            if (ch + 1 < channels) narrow(from + given->height * given->width, given->width, second);
            else memset(second, 0, (size_t)size);
            memset(to, 0, (size_t)(PAIR * given->pad_left) * sizeof *to);
            to += PAIR * given->pad_left;
            for (int64_t x = 0; x < given->width; x++, to += PAIR) to[0] = first[x], to[1] = second[x];
            memset(to, 0, (size_t)(PAIR * given->pad_right) * sizeof *to);
        }
}

/* A block of tiles of one image's group, for a part of the panels. */
static void run_item(int64_t item, int64_t thread, const void *context) {
    const nchwc_run *shared = context;
    nchwc_run own = *shared, *r = &own;
    const int64_t block = item / r->panel_parts % r->blocks, image = item / r->panel_parts / r->blocks;
    const int64_t sets = pysim_ceil_div(r->of.blocks, r->of.set);
    int64_t panel, panel_end, begin, end;
    if (r->k2) begin = block * r->k2, end = pysim_min(r->of.tiles, begin + r->k2);
    else pysim_split_range(r->of.tiles, block, r->blocks, &begin, &end);
    pysim_split_range(panels_of(&r->of), item % r->panel_parts, r->panel_parts, &panel, &panel_end);
    if (r->copies) copy_rows(r, image, begin, end, r->call->workspace + thread * r->job->thread_bytes);
    else r->input += image * r->of.blocks * r->of.inner * r->of.conv->height * r->of.conv->width * r->of.bytes;
    for (int64_t panels; panel < panel_end; panel += panels) {
        panels = panels_at_once(&r->of, panel, panel_end);
        for (int64_t set = 0; set < sets; set++)
            for (int64_t i = begin; i < end;) i += run_tiles(r, image, i, end - i, panel, panels, set, i - begin, end - begin);
    }
}

/* Divides the tiles and panels of each image into `parts` of the least time: multiply-adds, two vectors a cycle, and lines of the input and of
 * filters from beyond the thread's own caches. Parts of tiles read a part of the input only, parts of panels a part of the filters
 * (pysim/algorithms/cpu/direct_nchwc.py implements the same rule). Blocks get even sizes: of 523 tiles in blocks of 170, two threads would
 * have 340 and 183. */
static void divide(nchwc_run *r, int64_t parts) {
    const shape *of = &r->of;
    const pysim_conv *c = of->conv;
    const int64_t taps = c->kernel_h * c->kernel_w, channels = of->blocks * of->inner, panels = panels_of(of), fewest = r->blocks;
    const int64_t pixels = pysim_ceil_div(of->q, of->per_row), tile = pixels * of->panel * channels * taps / 2;
    const int64_t input = channels * c->height * c->width * of->bytes / LINE, filters = panels * panel_size(of) * of->bytes / LINE;
    int64_t least = INT64_MAX;
    for (int64_t f = 1; f <= pysim_min(parts, panels); f++) {
        const int64_t w = pysim_min(parts / f, of->tiles);
        const int64_t work = pysim_ceil_div(of->tiles, w) * pysim_ceil_div(panels, f) * tile + (input / w + filters / f) * LINE_CYCLES;
        if (work >= least) continue;
        least = work, r->panel_parts = f, r->k2 = 0;
        r->blocks = pysim_min(of->tiles, pysim_ceil_div(fewest, w) * w);
    }
}

static void run_nchwc(const pysim_job *job, const pysim_call *call) {
    nchwc_run r = {.of = shape_of(&job->own, &job->nest.row, &job->nest.schedule), .kernel = job->nest.row.nchwc, .call = call};
    const int64_t images = job->own.batch * job->own.groups;
    r.job = job, r.input = call->first, r.rows = job->own.height;
    r.copies = copies_rows(&job->own);
    r.contiguous = job->own.input_block <= 1 && job->own.dilation_w == 1;
    if (r.copies && pysim_conv_padded(&job->problem.conv)) memcpy(&r.apart, call->second + job->prepared_bytes - 64, sizeof r.apart);
    r.k2 = pysim_min(job->nest.schedule.k2, r.of.tiles);
    r.blocks = pysim_ceil_div(r.of.tiles, r.k2);
    r.panel_parts = 1;
    if (call->threads > 1) divide(&r, pysim_split_count(images, call->threads));
    const double start = call->profile ? pysim_now() : 0;
    pysim_parallel_for(images * r.blocks * r.panel_parts, call->threads, run_item, &r);
    if (call->profile) {
        call->profile->kernel_seconds = pysim_now() - start;
        call->profile->kernel_calls = images * r.of.tiles * panels_of(&r.of) * pysim_ceil_div(r.of.blocks, r.of.set);
    }
}

const pysim_algorithm pysim_algorithm_direct_nchwc = {open_nchwc, prepare_nchwc, run_nchwc, 1, 1, 1, 0, 0};
