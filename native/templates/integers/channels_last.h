/* SPDX-License-Identifier: Apache-2.0
 * Images of bytes with channels last, [height][width][channel]: windows as rows of k, pools along channels, conversions from planes and to them.
 * Part of templates/integers.c. */
enum { WIDE_BYTES = 64, MOST_INTERLEAVED = 4 };
#if defined __AVX512F__
enum { PIECE = 64 };
#elif defined __AVX2__
enum { PIECE = 32 };
#else
enum { PIECE = 16 };
#endif
typedef uint8_t PIECES __attribute__((vector_size(PIECE), aligned(1), may_alias)); /* a register: GCC splits longer ones through memory */

/* Copies n bytes, perhaps some behind them, if these lie before `stop` and their places before `end`. What is written later overwrites them. */
INLINE void copy_ascending(uint8_t *to, const uint8_t *from, int64_t n, const uint8_t *stop, const uint8_t *end) {
    for (; n >= PIECE; n -= PIECE, to += PIECE, from += PIECE) *(PIECES *)to = *(const PIECES *)from;
    if (n <= 0) return;
    if (from + PIECE <= stop && to + PIECE <= end) *(PIECES *)to = *(const PIECES *)from;
    else memcpy(to, from, (size_t)n);
}

/* A piece of a window: bytes [a, b) of the run of the image that begins at row y, column x. */
INLINE uint8_t *gather_run(const pysim_byte_windows *w, int64_t y, int64_t x, int64_t a, int64_t b, const uint8_t *stop, const uint8_t *end,
                           uint8_t *out) {
    const pysim_conv *c = w->conv;
    int64_t low = b, high = b; /* those that lie in the image */
    if (y >= 0 && y < c->height) {
        low = pysim_min(b, pysim_max(a, -x * c->channels));
        high = pysim_max(low, pysim_min(b, (c->width - x) * c->channels));
    }
    if (low > a) memset(out, w->fill, (size_t)(low - a));
    if (high > low) copy_ascending(out + (low - a), w->image + (y * c->width + x) * c->channels + low, high - low, stop, end);
    if (b > high) memset(out + (high - a), w->fill, (size_t)(b - high));
    return out + (b - a);
}

/* Windows inside the image, `count` of one row of outputs, whose kernel rows are runs of at most SIZE bytes: copies of SIZE each, the bytes behind which later
 * ones overwrite. All may be read and written. */
typedef uint8_t PIECES_16 __attribute__((vector_size(16), aligned(1), may_alias)),
    PIECES_32 __attribute__((vector_size(32), aligned(1), may_alias));
INLINE void copy_windows(const int SIZE, const uint8_t *from, int64_t count, int64_t apart, int64_t rows, int64_t step, int64_t run,
                         int64_t pitch, uint8_t *to) {
    for (int64_t i = 0; i < count; i++, from += apart, to += pitch) {
        const uint8_t *piece = from;
        uint8_t *out = to;
        for (int64_t r = 0; r < rows; r++, piece += step, out += run)
            if (SIZE == 16) *(PIECES_16 *)out = *(const PIECES_16 *)piece;
            else if (SIZE == 32) *(PIECES_32 *)out = *(const PIECES_32 *)piece;
            else *(PIECES *)out = *(const PIECES *)piece;
    }
}

/* As many of `count` windows of a row of outputs from a column on as that copies. */
static int64_t copied_windows(const pysim_byte_windows *w, int64_t row, int64_t column, int64_t count, int64_t pitch, uint8_t *to,
                              const uint8_t *stop, const uint8_t *end) {
    const pysim_conv *c = w->conv;
    const int64_t run = c->kernel_w * c->channels,
                  size = run > 32   ? PIECE
                         : run > 16 ? 32
                                    : 16,
                  y = row * c->stride_h - c->pad_top, line = c->width * c->channels;
    const int64_t left = column * c->stride_w - c->pad_left, last = c->width - c->kernel_w, below = (c->kernel_h - 1) * c->dilation_h;
    if (run > size || c->dilation_w > 1 || y < 0 || y + below >= c->height || left < 0 || left > last) return 0;
    const uint8_t *from = w->image + y * line + left * c->channels;
    int64_t found = pysim_min(pysim_min(count, w->out_w - column), (last - left) / c->stride_w + 1);
    const int64_t tail = below * line + size, apart = c->stride_w * c->channels; /* of what a window reads, and between windows */
    if (stop - from < tail + (found - 1) * apart) found = stop - from < tail ? 0 : (stop - from - tail) / apart + 1;
    const int64_t written = (c->kernel_h - 1) * run + size;
    if (end - to < written + (found - 1) * pitch) found = end - to < written ? 0 : (end - to - written) / pitch + 1;
    if (size == 16 && c->kernel_h == 3) copy_windows(16, from, found, apart, 3, c->dilation_h * line, run, pitch, to); /* unrolled */
    else if (size == 16) copy_windows(16, from, found, apart, c->kernel_h, c->dilation_h * line, run, pitch, to);
    else if (size > 32) copy_windows(PIECE, from, found, apart, c->kernel_h, c->dilation_h * line, run, pitch, to);
    else copy_windows(32, from, found, apart, c->kernel_h, c->dilation_h * line, run, pitch, to);
    return found;
}

/* Elements [k0, k1) of windows [first, first + count), each a row of k = [kernel row][kernel column][channel], `pitch` bytes apart. Without a dilation
 * the columns of a kernel row are one run of the image. Rows are written from the first to the last, and so are their bytes. */
static void gather(const pysim_byte_windows *w, int64_t first, int64_t count, int64_t k0, int64_t k1, int64_t pitch, uint8_t *to) {
    const pysim_conv *c = w->conv;
    const int64_t taps = c->dilation_w == 1 ? c->kernel_w : 1, runs = c->kernel_w / taps, run = taps * c->channels;
    const int64_t from = k0 / run, from_row = from / runs, from_run = from % runs;
    const uint8_t *stop = w->image + c->height * c->width * c->channels, *end = to + count * pitch;
    const int64_t step = c->dilation_h * c->width * c->channels;
    const int whole = k0 == 0 && k1 == c->kernel_h * c->kernel_w * c->channels;
    int64_t row = first / w->out_w, column = first % w->out_w;
    for (int64_t i = 0; i < count; i++, to += pitch) {
        const int64_t copied = whole ? copied_windows(w, row, column, count - i, pitch, to, stop, end) : 0;
        if (copied) {
            i += copied - 1, to += (copied - 1) * pitch, column += copied;
            if (column == w->out_w) column = 0, row++;
            continue;
        }
        const int64_t left = column * c->stride_w - c->pad_left;
        int64_t y = row * c->stride_h - c->pad_top + from_row * c->dilation_h, at = from * run, s = from_run;
        if (k0 == 0 && k1 == c->kernel_h * run && runs == 1 && left >= 0 && left + taps <= c->width) {
            const uint8_t *piece = w->image + (y * c->width + left) * c->channels;
            uint8_t *out = to;
            for (int64_t r = 0; r < c->kernel_h; r++, y += c->dilation_h, piece += step, out += run)
                if (y >= 0 && y < c->height) copy_ascending(out, piece, run, stop, end);
                else memset(out, w->fill, (size_t)run);
        } else
            for (uint8_t *out = to; at < k1; y += c->dilation_h, s = 0)
                for (; s < runs && at < k1; s++, at += run)
                    out = gather_run(w, y, left + s * c->dilation_w, pysim_max(k0 - at, 0), pysim_min(k1 - at, run), stop, end, out);
        if (++column == w->out_w) column = 0, row++;
    }
}

/* The taps of a window that lie inside: rows r0..r1, columns s0..s1, the first of which is at x. */
typedef struct {
    const uint8_t *x;
    int64_t rows, columns, row_step, column_step;
} taps_inside;

INLINE void largest_of(const taps_inside *t, uint8_t flip, int64_t channels, uint8_t *restrict y) {
    for (int64_t c = 0; c < channels; c += WIDE_BYTES) {
        uint8_t most[WIDE_BYTES] = {0};
        const int64_t some = pysim_min(WIDE_BYTES, channels - c);
        for (int64_t r = 0; r < t->rows; r++)
            for (int64_t s = 0; s < t->columns; s++) {
                const uint8_t *x = t->x + r * t->row_step + s * t->column_step + c;
                if (some == WIDE_BYTES)
                    for (int i = 0; i < WIDE_BYTES; i++) most[i] = (x[i] ^ flip) > most[i] ? x[i] ^ flip : most[i];
                else
                    for (int64_t i = 0; i < some; i++) most[i] = (x[i] ^ flip) > most[i] ? x[i] ^ flip : most[i];
            }
        for (int64_t i = 0; i < some; i++) y[c + i] = most[i] ^ flip;
    }
}

INLINE void mean_along(const taps_inside *t, const pysim_byte_pool *p, float count, int64_t channels, uint8_t *restrict y) {
    const pysim_byte of = pysim_byte_of(&p->from);
    for (int64_t c = 0; c < channels; c += WIDE_BYTES) {
        int32_t sum[WIDE_BYTES] = {0};
        const int64_t some = pysim_min(WIDE_BYTES, channels - c);
        for (int64_t r = 0; r < t->rows; r++)
            for (int64_t s = 0; s < t->columns; s++) {
                const uint8_t *x = t->x + r * t->row_step + s * t->column_step + c;
                if (some == WIDE_BYTES)
                    for (int i = 0; i < WIDE_BYTES; i++) sum[i] += (int32_t)(uint8_t)(x[i] ^ of.flip) - of.zero;
                else
                    for (int64_t i = 0; i < some; i++) sum[i] += (int32_t)(uint8_t)(x[i] ^ of.flip) - of.zero;
            }
        for (int64_t i = 0; i < some; i++) y[c + i] = mean_of(p, sum[i], count);
    }
}

/* Of one image. */
static void pool_channels(const pysim_byte_pool *p, const uint8_t *x, uint8_t *y) {
    const pysim_pool *w = &p->window;
    const int64_t tall = w->height + w->pad_top + w->pad_bottom, channels = w->block;
    for (int64_t row = 0; row < w->out_h; row++)
        for (int64_t column = 0; column < w->out_w; column++, y += channels) {
            int64_t r0, r1, s0, s1, within;
            const int64_t top = row * w->stride_h - w->pad_top, left = column * w->stride_w - w->pad_left;
            inside(top, w->height, w->kernel_h, w->dilation_h, &r0, &r1);
            inside(left, w->width, w->kernel_w, w->dilation_w, &s0, &s1);
            const int64_t high = counted(w, top, tall, w->kernel_h, w->dilation_h, w->pad_top, r1 - r0);
            taps_inside t = {x, r1 - r0, s1 - s0, w->dilation_h * w->width * channels, w->dilation_w * channels};
            if (t.rows > 0 && t.columns > 0) t.x += ((top + r0 * w->dilation_h) * w->width + left + s0 * w->dilation_w) * channels;
            if (w->largest) largest_of(&t, pysim_byte_of(&p->from).flip, channels, y);
            else mean_along(&t, p, (float)divisor_of(w, high, left, &within), channels, y);
        }
}

INLINE void interleave_planes(const int64_t channels, int64_t size, const uint8_t *restrict x, uint8_t *restrict y) {
    for (int64_t i = 0; i < size; i++)
        for (int64_t c = 0; c < channels; c++) y[i * channels + c] = x[c * size + i];
}

typedef uint8_t ROW16 __attribute__((vector_size(16))), ROW16_ANYWHERE __attribute__((vector_size(16), aligned(1), may_alias));
enum { SQUARE = 16, STAGES = 4 }; /* 2^STAGES */

/* y[j][i] = x[i][j] for i, j < SQUARE: each stage interleaves rows half of all apart, which moves one bit of a place's number from the row to the column. */
INLINE void transpose_square(const uint8_t *x, int64_t x_pitch, uint8_t *y, int64_t y_pitch) {
    ROW16 rows[2][SQUARE];
#pragma GCC unroll 16
    for (int i = 0; i < SQUARE; i++) rows[0][i] = *(const ROW16_ANYWHERE *)(x + i * x_pitch);
#pragma GCC unroll 4
    for (int stage = 0; stage < STAGES; stage++)
#pragma GCC unroll 8
        for (int i = 0; i < SQUARE / 2; i++) {
            const ROW16 a = rows[stage % 2][i], b = rows[stage % 2][i + SQUARE / 2];
            rows[1 - stage % 2][2 * i] = __builtin_shuffle(a, b, (ROW16){0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
            rows[1 - stage % 2][2 * i + 1] = __builtin_shuffle(a, b, (ROW16){8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
        }
#pragma GCC unroll 16
    for (int i = 0; i < SQUARE; i++) *(ROW16_ANYWHERE *)(y + i * y_pitch) = rows[0][i];
}

/* out[column][row] of a matrix of bytes, by squares; the last ones overlap those before them. Those of WIDE_BYTES columns read whole lines. */
static void transpose_bytes(int64_t rows, int64_t columns, const uint8_t *restrict x, uint8_t *restrict y) {
    if (rows < SQUARE || columns < SQUARE) {
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < columns; c++) y[c * rows + r] = x[r * columns + c];
        return;
    }
    for (int64_t c0 = 0; c0 < columns; c0 += WIDE_BYTES)
        for (int64_t r0 = 0; r0 < rows; r0 += SQUARE)
            for (int64_t c1 = c0; c1 < pysim_min(columns, c0 + WIDE_BYTES); c1 += SQUARE) {
                const int64_t r = pysim_min(r0, rows - SQUARE), c = pysim_min(c1, columns - SQUARE);
                transpose_square(x + r * columns + c, columns, y + c * rows + r, rows);
            }
}

/* An image in planes to one with channels last; back: the same with both sizes exchanged. */
static void transposed_image(int64_t channels, int64_t size, const uint8_t *x, uint8_t *y) {
    if (channels == 2) interleave_planes(2, size, x, y);
    else if (channels == 3) interleave_planes(3, size, x, y);
    else if (channels == MOST_INTERLEAVED) interleave_planes(MOST_INTERLEAVED, size, x, y);
    else transpose_bytes(channels, size, x, y);
}
