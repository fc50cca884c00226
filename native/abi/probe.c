/* SPDX-License-Identifier: Apache-2.0
 * What the running CPU does: its clock, its multiply-add rate and the bandwidth of a buffer, timed with CLOCK_MONOTONIC.
 *
 *   clock   a chain of adds, each waiting for the one before: additions / second = Hz, where a register add has a latency of one
 *           cycle (x86-64, AArch64). Median, so that neither an interrupt nor a boost at the start decides.
 *   fma     independent chains of multiply-adds: instructions / second; median. `portable` counts multiply-adds of an 8x4 block
 *           in plain C, compiled as its micro-kernel is, because its registry row has one window and one filter per "instruction".
 *   read    every byte of the buffer loaded once per pass: bytes / second; median. A sample of a large buffer is a window of WINDOW_BYTES:
 *           a whole pass over memory takes longer than a time slice, so beside other processes none is undisturbed.
 *   write   every byte stored once per pass with ordinary stores; the buffer's contents are lost.
 *   latency a chain of loads, each of the address that the one before gave, over all lines of the buffer in one random cycle that no
 *           prefetcher follows: seconds / load of the best sample. The pages of large buffers count, too.
 *   line_transfer
 *           two threads of a team pass a buffer to and fro: each in turn reads and writes all its lines. Seconds / line of one pass; median.
 *           One line: its transfer alone, as at the start and the end of a parallel region. Many lines: transfers overlap, as between
 *           layers whose outputs another thread reads.
 *
 * A sample is stretched until it takes 50 us: a clock reading costs about 25 ns, which then is 0.05 %. Warm-up ends when rates rise no
 * more, so that a core that was busy is read in 1.5 ms, and its clock in half of one: as it was behind wide vectors, for which cores of
 * some servers slow down, and speed up again 0.7 ms later (an Emerald Rapids: 3.2 GHz then, 3.0 before).
 * Worked number: a core at 3.7 GHz issuing one 512-bit multiply-add a cycle shows 3.7e9 for both clock and fma(avx512). */
#define _POSIX_C_SOURCE 200809L
#include "probe.h"

#include <math.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include "algorithms/nest.h"
#include "elements.h"
#include "pysim.h"
#include "status.h"

enum { SAMPLES = 21, CLOCK_SAMPLES = 5, STEADY_CALLS = 4, STREAM_SAMPLES = 511, WINDOW_BYTES = 8 << 20, SAMPLE_LINES = 64, SPINS = 256 };
static const double SAMPLE_SECONDS = 50e-6, WARM_UP_SECONDS = 5e-3, RISE = 1.01; /* at most; of a rate */
static const double PARTNER_SECONDS = 20e-3;                                     /* wait for a second thread: longer than its wake-up */
static const double SLOWEST_LINE = 10e-6; /* seconds; a transfer that takes longer waited for a thread without a CPU */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The compiler must take the value as new: x + y + y is not folded to x + 2y, and a result counts as used. */
#define UNKNOWN(value) __asm__ volatile("" : "+r"(value))

/* At least `count` dependent adds; returns how many. */
static int64_t chain_of_adds(int64_t count) {
    const int64_t rounds = count / 16 + 1;
    uint64_t sum = 0, step = 3;
    UNKNOWN(step);
    for (int64_t i = 0; i < rounds; i++) {
#define ADD      \
    sum += step; \
    UNKNOWN(sum);
        ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD
#undef ADD
    }
    return 16 * rounds;
}

/* The portable multiply-add: acc[f][w] += filter[f] * window[w], the block of the portable rows. */
enum { BLOCK_FILTERS = 4, BLOCK_WINDOWS = 8, BLOCK_DEPTH = 64 };
#define DEFINE_PORTABLE_FMA(T, dtype, SUM, VALUE)                                                                                \
    static int64_t portable_fma_##dtype(int64_t count) {                                                                         \
        static const T filters[BLOCK_DEPTH][BLOCK_FILTERS], windows[BLOCK_DEPTH][BLOCK_WINDOWS];                                 \
        const int64_t in_block = BLOCK_DEPTH * BLOCK_FILTERS * BLOCK_WINDOWS, blocks = count / in_block + 1;                     \
        for (int64_t b = 0; b < blocks; b++) {                                                                                   \
            const T *f = filters[0], *w = windows[0];                                                                            \
            SUM acc[BLOCK_FILTERS][BLOCK_WINDOWS] = {{0}};                                                                       \
            UNKNOWN(f);                                                                                                          \
            UNKNOWN(w);                                                                                                          \
            for (int64_t k = 0; k < BLOCK_DEPTH; k++, f += BLOCK_FILTERS, w += BLOCK_WINDOWS)                                    \
                for (int i = 0; i < BLOCK_FILTERS; i++)                                                                          \
                    for (int j = 0; j < BLOCK_WINDOWS; j++) acc[i][j] += VALUE(f[i]) * VALUE(w[j]);                              \
            SUM out[BLOCK_FILTERS][BLOCK_WINDOWS], *result = out[0]; /* only the copy's address escapes: acc can be registers */ \
            for (int i = 0; i < BLOCK_FILTERS; i++)                                                                              \
                for (int j = 0; j < BLOCK_WINDOWS; j++) out[i][j] = acc[i][j];                                                   \
            __asm__ volatile("" : "+r"(result) : : "memory");                                                                    \
        }                                                                                                                        \
        return blocks * in_block;                                                                                                \
    }
DEFINE_PORTABLE_FMA(float, f32, float, PYSIM_SAME)
DEFINE_PORTABLE_FMA(double, f64, double, PYSIM_SAME)
DEFINE_PORTABLE_FMA(uint16_t, bf16, float, pysim_bf16_value)
DEFINE_PORTABLE_FMA(int8_t, s8, uint32_t, PYSIM_RESIDUE_32)

static double median(double *values, int32_t count) {
    for (int32_t i = 1; i < count; i++) {
        const double value = values[i];
        int32_t j = i;
        for (; j > 0 && values[j - 1] > value; j--) values[j] = values[j - 1];
        values[j] = value;
    }
    return values[count / 2];
}

/* Median rate of a loop that does at least `count` things and says how many. */
static double median_rate(int64_t (*loop)(int64_t), int32_t samples) {
    double rates[SAMPLES], best = 0;
    int64_t count = 1024;
    int32_t steady = 0;
    for (double started = now(), before = started, after = started; steady < STEADY_CALLS && after - started < WARM_UP_SECONDS;
         before = after) {
        const double done = (double)loop(count);
        after = now();
        if (after - before < SAMPLE_SECONDS) {
            count *= 2;
        } else {
            steady = done > RISE * best * (after - before) ? 0 : steady + 1;
            if (done > best * (after - before)) best = done / (after - before);
        }
    }
    for (int32_t i = 0; i < samples; i++) {
        const double before = now();
        const int64_t done = loop(count);
        rates[i] = (double)done / (now() - before);
    }
    return median(rates, samples);
}

/* A clock that stood still or went backwards gives no rate. */
static pysim_status give(double rate, double *result) {
    if (!isfinite(rate) || rate <= 0) return pysim_fail(PYSIM_UNSUPPORTED, "CLOCK_MONOTONIC stood still while a probe ran");
    *result = rate;
    return PYSIM_OK;
}

pysim_status pysim_probe_clock(double *hertz) {
    if (!hertz) return pysim_fail(PYSIM_BAD_ARGUMENT, "hertz, which receives the result, is NULL");
    return give(median_rate(chain_of_adds, CLOCK_SAMPLES), hertz);
}

static pysim_issue_fma issue_fma(const char *target, int32_t dtype) {
    if (strcmp(target, "portable") == 0) {
        static const pysim_issue_fma loops[] = {
            [PYSIM_F32] = portable_fma_f32,
            [PYSIM_F64] = portable_fma_f64,
            [PYSIM_BF16] = portable_fma_bf16,
            [PYSIM_S8] = portable_fma_s8,
        };
        return loops[dtype];
    }
#if defined(__x86_64__)
    return pysim_x86_issue_fma(target, dtype);
#elif defined(__powerpc64__)
    return strcmp(target, "mma") == 0 && pysim_power10_issue_fma ? pysim_power10_issue_fma(dtype) : NULL;
#else
    return NULL;
#endif
}

/* The registry has the target for this dtype, and this CPU runs it. */
static pysim_status check_target(const char *target, int32_t dtype) {
    int32_t known = 0;
    for (int32_t i = 0; i < pysim_kernel_count(); i++) {
        pysim_kernel_info row;
        if (pysim_kernel_at(i, &row) != PYSIM_OK || strcmp(row.target, target) != 0) continue;
        known = 1;
        if (row.dtype == dtype && row.available) return PYSIM_OK;
    }
    return known ? pysim_fail(PYSIM_UNSUPPORTED, "target %s is not available for this dtype on this CPU", target)
                 : pysim_fail(PYSIM_UNSUPPORTED, "target %.64s is not in the kernel registry", target);
}

pysim_status pysim_probe_fma(const char *target, int32_t dtype, double *instructions_per_second) {
    if (!target) return pysim_fail(PYSIM_BAD_ARGUMENT, "target is NULL");
    if (!instructions_per_second) return pysim_fail(PYSIM_BAD_ARGUMENT, "instructions_per_second, which receives the result, is NULL");
    pysim_status status = pysim_check_dtype(dtype);
    if (status == PYSIM_OK) status = check_target(target, dtype);
    if (status != PYSIM_OK) return status;
    const pysim_issue_fma loop = issue_fma(target, dtype);
    if (!loop) return pysim_fail(PYSIM_UNSUPPORTED, "target %s has no multiply-add probe", target);
    return give(median_rate(loop, SAMPLES), instructions_per_second);
}

/* One block as 64-bit words; the compiler vectorises it for the target that the file is built for. */
enum { WORDS = PYSIM_PROBE_BLOCK / 8 };

static uint64_t read_portable(const void *from, int64_t blocks) {
    const uint64_t *word = from;
    uint64_t sum[8] = {0}, all = 0;
    for (int64_t i = 0; i < blocks; i++, word += WORDS)
        for (int j = 0; j < WORDS; j += 8)
            for (int l = 0; l < 8; l++) sum[l] |= word[j + l];
    for (int l = 0; l < 8; l++) all |= sum[l];
    return all;
}

static void write_portable(void *to, int64_t blocks, uint64_t value) {
    uint64_t *word = to;
    for (int64_t i = 0; i < blocks * WORDS; i++) word[i] = value;
}

/* A buffer as whole blocks that begin on a vector, with bytes before and after them, which take as long each as a vector does. */
typedef struct {
    unsigned char *head, *body, *tail;
    int64_t head_bytes, blocks, tail_bytes;
} pieces;

static pieces cut(void *buffer, int64_t bytes) {
    const int64_t misaligned = (int64_t)((uintptr_t)buffer % PYSIM_PROBE_VECTOR);
    int64_t head = misaligned ? PYSIM_PROBE_VECTOR - misaligned : 0;
    if (head > bytes) head = bytes;
    pieces p = {.head = buffer, .head_bytes = head, .blocks = (bytes - head) / PYSIM_PROBE_BLOCK};
    p.body = p.head + head;
    p.tail = p.body + p.blocks * PYSIM_PROBE_BLOCK;
    p.tail_bytes = bytes - head - p.blocks * PYSIM_PROBE_BLOCK;
    return p;
}

typedef struct {
    pysim_read_blocks read;
    pysim_write_blocks write;
} streams;

static streams widest(void) {
    streams s = {read_portable, write_portable};
#if defined(__x86_64__)
    if (pysim_x86_read_blocks()) s.read = pysim_x86_read_blocks();
    if (pysim_x86_write_blocks()) s.write = pysim_x86_write_blocks();
#endif
    return s;
}

static void read_pass(const pieces *p, const streams *s) {
    uint64_t all = s->read(p->body, p->blocks);
    for (int64_t i = 0; i < p->head_bytes; i++) all |= p->head[i];
    for (int64_t i = 0; i < p->tail_bytes; i++) all |= p->tail[i];
    UNKNOWN(all);
    __asm__ volatile("" ::: "memory");
}

static void write_pass(const pieces *p, const streams *s) {
    uint64_t value = 0;
    UNKNOWN(value);
    s->write(p->body, p->blocks, value);
    memset(p->head, 0, (size_t)p->head_bytes);
    memset(p->tail, 0, (size_t)p->tail_bytes);
    __asm__ volatile("" ::: "memory");
}

/* The window at `*block` of the body, a whole buffer that is no larger; moves on to the next. */
static pieces window(const pieces *p, int64_t *block) {
    const int64_t most = WINDOW_BYTES / PYSIM_PROBE_BLOCK;
    if (p->blocks <= most) return *p;
    if (*block + most > p->blocks) *block = 0;
    const pieces part = {.head = p->head, .body = p->body + *block * PYSIM_PROBE_BLOCK, .tail = p->tail, .blocks = most};
    *block += most;
    return part;
}

/* Median bytes/second over the last samples of `seconds`, at least one. The first pass warms up. */
static pysim_status probe_stream(void (*pass)(const pieces *, const streams *), void *buffer, int64_t bytes, double seconds,
                                 double *bytes_per_second) {
    if (!buffer) return pysim_fail(PYSIM_BAD_ARGUMENT, "buffer is NULL");
    if (!bytes_per_second) return pysim_fail(PYSIM_BAD_ARGUMENT, "bytes_per_second, which receives the result, is NULL");
    if (bytes <= 0) return pysim_fail(PYSIM_BAD_ARGUMENT, "bytes is %lld; expected at least 1", (long long)bytes);
    if (!isfinite(seconds) || seconds <= 0)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "seconds is %g; expected a positive, finite number", seconds);
    const pieces p = cut(buffer, bytes);
    const streams s = widest();
    const double started = now();
    double rates[STREAM_SAMPLES];
    int64_t passes = 1, block = 0;
    int32_t count = 0;
    pass(&p, &s);
    do {
        const pieces part = window(&p, &block);
        const double before = now();
        for (int64_t i = 0; i < passes; i++) pass(&part, &s);
        const double took = now() - before, moved = (double)(part.head_bytes + part.blocks * PYSIM_PROBE_BLOCK + part.tail_bytes);
        if (part.blocks == p.blocks && took < SAMPLE_SECONDS) passes *= 2; /* never over a window, which a cache may hold */
        else rates[count++ % STREAM_SAMPLES] = moved * (double)passes / took;
    } while (count == 0 || now() - started < seconds);
    return give(median(rates, count < STREAM_SAMPLES ? count : STREAM_SAMPLES), bytes_per_second);
}

pysim_status pysim_probe_read(void *buffer, int64_t bytes, double seconds, double *bytes_per_second) {
    return probe_stream(read_pass, buffer, bytes, seconds, bytes_per_second);
}

pysim_status pysim_probe_write(void *buffer, int64_t bytes, double seconds, double *bytes_per_second) {
    return probe_stream(write_pass, buffer, bytes, seconds, bytes_per_second);
}

/* A pointer in each line to the next of one random cycle through all of them (Sattolo's shuffle), pseudo-random by Knuth's MMIX generator. */
static void make_cycle(unsigned char *buffer, int64_t lines, int64_t line_bytes) {
#define LINE(i) (*(void **)(void *)(buffer + (i) * line_bytes))
    uint64_t state = 1;
    for (int64_t i = 0; i < lines; i++) LINE(i) = &LINE(i);
    for (int64_t i = lines - 1; i > 0; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const int64_t j = (int64_t)((state >> 33) % (uint64_t)i);
        void *const other = LINE(j);
        LINE(j) = LINE(i);
        LINE(i) = other;
    }
#undef LINE
}

static void *follow(void *at, int64_t loads) {
    for (int64_t i = 0; i < loads; i++) at = *(void **)at;
    UNKNOWN(at);
    return at;
}

/* Checks a buffer of `least` lines or more. */
static pysim_status check_lines(const void *buffer, int64_t bytes, int64_t line_bytes, int64_t least, double seconds) {
    if (!buffer) return pysim_fail(PYSIM_BAD_ARGUMENT, "buffer is NULL");
    if (line_bytes < 8 || line_bytes % 8 != 0)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "line_bytes is %lld; expected a multiple of 8", (long long)line_bytes);
    if ((uintptr_t)buffer % 8 != 0) return pysim_fail(PYSIM_BAD_ARGUMENT, "buffer is not aligned to 8 bytes");
    if (bytes / line_bytes < least)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "bytes is %lld; expected at least %lld lines", (long long)bytes, (long long)least);
    if (!isfinite(seconds) || seconds <= 0)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "seconds is %g; expected a positive, finite number", seconds);
    return PYSIM_OK;
}

pysim_status pysim_probe_latency(void *buffer, int64_t bytes, int64_t line_bytes, double seconds, double *seconds_per_load) {
    const int64_t lines = line_bytes > 0 ? bytes / line_bytes : 0;
    pysim_status status = check_lines(buffer, bytes, line_bytes, 2, seconds);
    if (status != PYSIM_OK) return status;
    if (!seconds_per_load) return pysim_fail(PYSIM_BAD_ARGUMENT, "seconds_per_load, which receives the result, is NULL");
    make_cycle(buffer, lines, line_bytes);
    void *at = follow(buffer, lines);
    int64_t loads = 1024;
    double best = INFINITY;
    const double started = now();
    do {
        const double before = now();
        at = follow(at, loads);
        const double took = now() - before;
        if (took < SAMPLE_SECONDS) loads *= 2;
        else if (took / (double)loads < best) best = took / (double)loads;
    } while (!isfinite(best) || now() - started < seconds);
    return give(best, seconds_per_load);
}

/* Two threads that pass a buffer to and fro. The first word of the buffer says whose turn it is, so that a buffer of one line moves alone. */
enum { CALLER, PARTNER, ENDED };
typedef struct {
    unsigned char *buffer;
    int64_t lines, line_bytes;
    double seconds;
    _Atomic int present; /* the partner has begun */
    double rate;         /* lines per second; 0: none */
} transfer;

static _Atomic uint64_t *turn_of(const transfer *t) { return (_Atomic uint64_t *)(void *)t->buffer; }

/* Reads and writes all lines but the first, then passes the first, unless the passing has ended. */
static void pass_lines(const transfer *t, uint64_t from, uint64_t to) {
    for (int64_t i = 1; i < t->lines; i++) ++*(uint64_t *)(void *)(t->buffer + i * t->line_bytes);
    atomic_compare_exchange_strong(turn_of(t), &from, to);
}

/* Waits for the turn of `self` until `end`; returns whose turn it is then. */
static uint64_t await_turn(const transfer *t, uint64_t self, double end) {
    uint64_t turn;
    for (int64_t spins = 0; (turn = atomic_load_explicit(turn_of(t), memory_order_acquire)) != self && turn != ENDED; spins++)
        if (spins % SPINS == SPINS - 1 && now() > end) break;
    return turn;
}

static void time_transfers(transfer *t) {
    const int64_t rounds = pysim_ceil_div(SAMPLE_LINES, t->lines);
    const double started = now(), end = started + t->seconds + PARTNER_SECONDS;
    double rates[STREAM_SAMPLES];
    int32_t count = 0;
    while (!atomic_load(&t->present) && now() < end) continue;
    for (uint64_t turn = atomic_load(&t->present) ? CALLER : ENDED; turn == CALLER && (count < SAMPLES || now() - started < t->seconds);) {
        const double before = now();
        for (int64_t i = 0; i < rounds && turn == CALLER; i++) pass_lines(t, CALLER, PARTNER), turn = await_turn(t, CALLER, end);
        if (turn == CALLER) rates[count++ % STREAM_SAMPLES] = (double)(2 * rounds * t->lines) / (now() - before);
    }
    atomic_store(turn_of(t), ENDED);
    if (count) t->rate = median(rates, count < STREAM_SAMPLES ? count : STREAM_SAMPLES);
}

static void transfer_item(int64_t item, int64_t thread, const void *context) {
    transfer *t = *(transfer *const *)context;
    if (thread == 0 && item == 0) {
        time_transfers(t);
    } else if (thread == 1 && item == 1) {
        atomic_store(&t->present, 1);
        while (await_turn(t, PARTNER, INFINITY) == PARTNER) pass_lines(t, PARTNER, CALLER);
    }
}

pysim_status pysim_probe_line_transfer(void *buffer, int64_t bytes, int64_t line_bytes, double seconds, double *seconds_per_line) {
    pysim_status status = check_lines(buffer, bytes, line_bytes, 1, seconds);
    if (status != PYSIM_OK) return status;
    if (!seconds_per_line) return pysim_fail(PYSIM_BAD_ARGUMENT, "seconds_per_line, which receives the result, is NULL");
    transfer t = {.buffer = buffer, .lines = bytes / line_bytes, .line_bytes = line_bytes, .seconds = seconds}, *const shared = &t;
    memset(buffer, 0, (size_t)bytes);
    pysim_parallel_for(2, 2, transfer_item, &shared);
    if (t.rate * SLOWEST_LINE < 1) return pysim_fail(PYSIM_UNSUPPORTED, "no second thread had a CPU of its own");
    return give(1 / t.rate, seconds_per_line);
}
