/* SPDX-License-Identifier: Apache-2.0
 * F(4x4, 3x3) in one kernel (equation: winograd.h, matrices: unfused4.cuh).
 *
 *   block    32 filters x 32 tiles of 4x4 outputs; 8 channels a k-iteration; accumulators of all 36 planes in registers, 72 a thread
 *   warp     w of 16 multiplies planes 2 w and 2 w + 1, each with half of its lanes, and a quarter of plane 32 + w / 4
 *   thread   8 filters x 8 tiles of one plane, and 8 accumulators of another. Each scheduler then has four warps. (With 18 warps of two planes each,
 *            two schedulers would have five, which would leave a thread only 96 registers.)
 *
 * Two threads of a warp transform a patch. B^T first combines the even rows of d among themselves and the odd rows among themselves,
 *
 *   even (d0 d2 d4)  row 0 = a2b2 d0 - (a2 + b2) d2 + d4    near  = d4 - b2 d2    far    = d4 - a2 d2
 *   odd  (d5 d1 d3)  row 5 = d5 + a2b2 d1 - (a2 + b2) d3    cross = d3 - b2 d1    across = d3 - a2 d1
 *
 *   even   row 1 = near + a cross    row 3 = far + b across        odd    row 2 = cross - near / a    row 4 = across - far / b
 *
 * so each thread loads three rows, transforms them along the row, exchanges near and far for cross and across, and stores three rows of the
 * transformed patch: the two inner ones, then the outer one. Loads are issued three to five channels before their use: the outer row's after the
 * inner rows are stored, the next patch's inner rows' after the outer row is stored. This takes 12 registers besides the accumulators. The four warps
 * of a scheduler store at different times, warp w after channels w / 4 and w / 4 + 3, so that three multiply while one waits for shared memory and
 * shuffles. Two mbarriers per k-iteration (Stages) let warps drift further apart than one __syncthreads() does.
 *
 * Filters: with `fused` an earlier kernel transforms them, and one bulk copy loads those of a k-iteration (Transformed); with `single` the block
 * transforms them, too, and needs no workspace (Weights).
 *
 * Layout of a stage: the 32 tiles of plane p and channel c are at word p PITCH + c ROW. The filters follow all tiles, 32 of them at word (p 8 + c) 32
 * (`single`: 36). Slots are tiles and lines are filters under NCHW, the other way round under NHWC. Lane l of half a warp reads two vectors of slots,
 * l / 2 mod 2 + 2 (l / 8) and that + 4, and two of lines, l mod 2 + 2 (l / 4 mod 2) and that + 4. Two of four neighbouring lanes read the same
 * vector, so a 16-byte load takes 2 wavefronts (pysim/cachemodel/shared_memory/banks.py). For the quarter plane, 16 x 16, lane l of the warp reads
 * the vector l / 2 mod 2 + 2 (l / 16) of slots (2 wavefronts) and the pair l mod 2 + 2 (l / 4 mod 4) of lines (1). A store of patches takes 1
 * wavefront:
 *   NCHW   a warp has 16 neighbouring tiles of one channel, even rows and odd rows. Their planes' numbers differ by 6 or 30; PITCH is 8 modulo 16,
 *          so these planes are 16 banks apart
 *   NHWC   a warp has 4 tiles of 4 channels, which ROW puts 4 banks apart. The same under NCHW if an image has up to 4 tiles: few cache lines then
 *          hold all its channels
 *
 * The epilogue keeps all accumulators in shared memory at once, [plane][line][slot]. A warp reads, transforms and stores one line: neighbouring
 * outputs of a row (NCHW), or neighbouring filters (NHWC). Vectors of a line are rotated to avoid bank conflicts between stores of eight lanes. */
#ifndef PYSIM_CUDA_WINOGRAD_FUSED4_CUH
#define PYSIM_CUDA_WINOGRAD_FUSED4_CUH
#include <new>
#include <type_traits>

#include "core/launch.h"
#include "conv/winograd/fused4_pipeline.cuh"

namespace pysim::winograd::fused4 {

/* Loads and transforms one half (even or odd rows) of the patches of one tile, one channel per k-iteration (step). PIECE: how many of elements 1 to 4
 * of a row one load reads. A piece of several elements is aligned, and lies entirely inside or entirely outside the input. */
template <bool NHWC, int PIECE> class Halves {
    const float *at; /* row 2 (even) or 1 (odd) of the patch to load next; it may lie outside the input: see `inside` */
    int row, column, step; /* elements between rows of the input, between columns, between steps */
    enum { LINE = 6 * PITCH * 4 }; /* bytes from the planes of one row of a patch to those of the next */
    unsigned inside; /* bit 6 k + s: element s of row k of (0 2 4), or (5 1 3), is in the input; bit 30: the last step has this channel; 31: odd */
    int to;          /* byte of plane 0 in a stage */

    __device__ bool is_odd() const { return forget((int)inside) < 0; }
    __device__ unsigned valid(bool last) const { return last && !(inside >> 30 & 1) ? 0 : inside; }

  public:
    __device__ Halves(const Conv &c, int group, int first_tile, int begin, int end, unsigned thread) {
        const unsigned warp = thread / 32, lane = thread % 32;
        const bool square = NHWC || c.per_image.divisor <= 4;
        const int channel = (int)(square ? warp % 2 * 4 + lane % 4 : warp / 2), tile = (int)(square ? warp / 2 * 4 + lane / 4 % 4 : warp % 2 * 16 + lane % 16);
        const bool odd = lane >= 16;
        to = (channel * ROW + tile) * 4;
        const int all = c.groups * c.channels, number = first_tile + tile;
        const Corner corner = corner_of(c, number);
        const int h = corner.p - c.pad_top, w = corner.q - c.pad_left;
        inside = 0;
        if (number < c.windows)
#pragma unroll
            for (int i = 0; i < 18; i++) {
                const int r = h + (odd ? (i / 6 * 2 + 5) % 6 : i / 6 * 2), s = w + i % 6;
                if (r >= 0 && r < c.height && s >= 0 && s < c.width) inside |= 1u << i;
            }
        column = NHWC ? all : 1, row = c.width * column, step = NHWC ? (int)STEP : STEP * c.height * c.width;
        if (begin + (end - begin - 1) / STEP * STEP + channel < end) inside |= 1u << 30;
        if (odd) inside |= 1u << 31;
        const int from = group * c.channels + begin + channel;
        const int64_t origin = NHWC ? ((int64_t)corner.n * c.height * c.width + (int64_t)h * c.width + w) * all + from
                                    : ((int64_t)corner.n * all + from) * c.height * c.width + (int64_t)h * c.width + w;
        at = (const float *)c.in + origin + (odd ? 1 : 2) * row;
    }

    /* Loads one row. `inside`: a bit per element; `from`: its first element. */
    static __device__ void load_row(float *d, unsigned inside, const float *from, int column) {
#pragma unroll
        for (int i = 0; i < 6; i++)
            if (PIECE == 1 || i == 0 || i == 5) d[i] = inside >> i & 1 ? from[i * column] : 0.f;
            else if (i % PIECE == 1 % PIECE) {
                const Pack<float, PIECE> piece = inside >> i & 1 ? *(const Pack<float, PIECE> *)(from + i) : Pack<float, PIECE>{};
#pragma unroll
                for (int j = 0; j < PIECE; j++) d[i + j] = piece.value[j];
            }
    }
    /* Rows 2 and 4, or 1 and 3. */
    __device__ void load_inner(float (&d)[12], bool last) const {
        const unsigned mask = valid(last);
        const float *const next = at + 2 * row;
        const int column = NHWC ? forget(this->column) : 1;
        load_row(d, mask >> 6, at, column), load_row(d + 6, mask >> 12, next, column);
    }
    /* Row 0, or 5; then advances to the next step. */
    __device__ void load_outer(float (&d)[12], bool last) {
        const unsigned mask = valid(last);
        const float *const from = at + (is_odd() ? 4 : -2) * row;
        const int column = NHWC ? forget(this->column) : 1;
        load_row(d, mask, from, column);
        at += step;
    }

    /* Leaves in d[6 ..] the inner rows' part of the outer row. */
    __device__ void store_inner(char *stage, float (&d)[12]) const {
        const bool odd = is_odd();
        const float f1 = odd ? A2B2 : -A2_B2, f2 = odd ? -A2_B2 : 1, by_near = odd ? OVER_A : POINT_A, by_far = odd ? OVER_B : POINT_B;
        char *const to = stage + this->to + (odd ? 2 * LINE : (int)LINE);
        input_line_4<1>(d), input_line_4<1>(d + 6);
#pragma unroll
        for (int s = 0; s < 6; s++) {
            const float x1 = d[s], x2 = d[6 + s], near = fmaf(-B2, x1, x2), far = fmaf(-A2, x1, x2);
            *(float *)(to + s * (PITCH * 4)) = fmaf(by_near, __shfl_xor_sync(0xffffffffu, near, 16), near);
            *(float *)(to + s * (PITCH * 4) + 2 * LINE) = fmaf(by_far, __shfl_xor_sync(0xffffffffu, far, 16), far);
            d[6 + s] = fmaf(f1, x1, f2 * x2);
        }
    }
    __device__ void store_outer(char *stage, float (&d)[12]) const {
        const bool odd = is_odd();
        const float f0 = odd ? 1 : A2B2;
        char *const to = stage + this->to + (odd ? 5 * LINE : 0);
        input_line_4<1>(d);
#pragma unroll
        for (int s = 0; s < 6; s++) *(float *)(to + s * (PITCH * 4)) = fmaf(f0, d[s], d[6 + s]);
    }
};

__device__ inline void read_16(float *to, const char *from) {
    const float4 v = *(const float4 *)from;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

/* A thread's accumulators: their plane, and the first of its slots and of its lines. Four are contiguous; the next four begin 16 further on. */
struct Place { unsigned plane, slot, line; }; /* unsigned: division and modulo by powers of two are cheap */
__device__ inline Place place_of(unsigned thread) {
    return {thread / 16, 4 * (thread / 2 % 2 + thread / 8 % 2 * 2), 4 * (thread % 2 + thread / 4 % 2 * 2)};
}
/* The same for a thread's 4 x 2 accumulators of a quarter plane. */
__device__ inline Place rest_of(unsigned thread) {
    return {32 + thread / 128, thread / 64 % 2 * 16 + 4 * (thread / 2 % 2 + thread / 16 % 2 * 2), thread / 32 % 2 * 16 + 2 * (thread % 2 + thread / 4 % 4 * 2)};
}

/* The main loop: accumulates sum[slot][line] and rest[slot][line] (the quarter plane) over `steps` k-iterations. */
template <bool NHWC, int PIECE, class Filters>
__device__ inline void sum_planes(Halves<NHWC, PIECE> halves, Filters filters, Stages stages, int steps, float (&sum)[8][8], float (&rest)[4][2], char *shared) {
    const unsigned thread = threadIdx.x;
    const Place main = place_of(thread), quarter = rest_of(thread);
    enum { OF_FILTERS = Filters::ROW, STAGE_BYTES = TILE_BYTES + Filters::BYTES, FILTER_PLANE = STEP * OF_FILTERS };
    enum { SLOT_PLANE = NHWC ? (int)FILTER_PLANE : (int)PITCH, SLOT_ROW = NHWC ? (int)OF_FILTERS : (int)ROW };
    enum { LINE_PLANE = NHWC ? (int)PITCH : (int)FILTER_PLANE, LINE_ROW = NHWC ? (int)ROW : (int)OF_FILTERS };
    const auto slots_at = [](const Place &p) { return (p.plane * SLOT_PLANE + p.slot) * 4 + (NHWC ? (int)TILE_BYTES : 0); };
    const auto lines_at = [](const Place &p) { return (p.plane * LINE_PLANE + p.line) * 4 + (NHWC ? 0 : (int)TILE_BYTES); };
    const auto kept = [](unsigned x) { return __shfl_xor_sync(0xffffffffu, (int)x, 0); }; /* without this the assembler recomputes x at each use */
    const int slots = kept(slots_at(main)), lines = kept(lines_at(main)), some_slots = kept(slots_at(quarter)), some_lines = kept(lines_at(quarter));
    const int warp = __shfl_sync(0xffffffffu, (int)thread / 32, 0), pass = warp / 4; /* the compiler then knows that this is uniform in the warp */
    float patch[12];
    std::conditional_t<Filters::DRAINS, Totals, NoTotals> totals(shared + 2 * STAGE_BYTES);
    const auto multiply = [&](const char *of_slots, const char *of_lines) { /* one channel; arguments: its addresses in plane 0 of the stage */
        float a[8], b[8];
        read_16(a, of_slots + slots), read_16(a + 4, of_slots + slots + SIDE * 2);
        read_16(b, of_lines + lines), read_16(b + 4, of_lines + lines + SIDE * 2);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i8 = 0; i8 < 8; i8++) {
                const int m = n % 2 ? 7 - i8 : i8;
                sum[m][n] = fmaf(a[m], b[n], sum[m][n]);
            }
        read_16(a, of_slots + some_slots);
        const float2 two = *(const float2 *)(of_lines + some_lines);
#pragma unroll
        for (int m = 0; m < 4; m++) rest[m][0] = fmaf(a[m], two.x, rest[m][0]), rest[m][1] = fmaf(a[m], two.y, rest[m][1]);
    };
    filters.begin(stages, shared, steps, warp);
    float first[12], outer[12]; /* accumulators are not live yet, so registers hold the whole first patch and the second's inner rows */
    halves.load_inner(first, steps == 1), halves.load_outer(outer, steps == 1);
    if (steps > 1) halves.load_inner(patch, steps == 2);
    filters.with_prologue(shared, warp);
    halves.store_inner(shared, first);
#pragma unroll
    for (int s = 6; s < 12; s++) outer[s] = first[s];
    halves.store_outer(shared, outer);
    stages.full();
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
        const bool more = i + 1 < steps;
        stages.wait_full(i);
        const char *slots = shared + i % 2 * STAGE_BYTES, *lines = slots;
        char *const other = shared + (1 - i % 2) * STAGE_BYTES;
        const auto some = [&](int channels) {
#pragma unroll 1
            for (; channels > 0; channels--) multiply(slots, lines), slots += SLOT_ROW * 4, lines += LINE_ROW * 4;
        };
        some(pass + 1);
        if (more) {
            stages.wait_free(i);
            filters.fetch(stages, shared, i + 1, steps, warp);
            halves.store_inner(other, patch), halves.load_outer(patch, i + 2 == steps);
        }
        some(3);
        if (more) {
            halves.store_outer(other, patch);
            filters.fill(shared, i + 1, warp);
            stages.full();
            if (i + 2 < steps) halves.load_inner(patch, i + 3 == steps);
        }
        some(STEP / 2 - pass);
        if (i + 2 < steps) stages.read();
        if (more && totals.after(i, steps)) totals.drain(sum, rest);
    }
    totals.add_to(sum, rest);
}

/* The word of an accumulator in its plane. */
__device__ inline int word_of(unsigned slot, unsigned line) { return line * SIDE + (slot ^ line / 4 % 4 * 8 ^ line / 2 % 2 * 16); }

/* The same with neighbouring slots exchanged: registers of accumulators then have the opposite parity to those of fragments (store_tile). */
__device__ inline int swapped(unsigned slot, unsigned line) { return word_of(slot ^ 1, line); }

__device__ inline void put(float *to, const float (&sum)[8][8], const float (&rest)[4][2], unsigned thread) {
    const Place main = place_of(thread), quarter = rest_of(thread);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int m = i % 2 * 4, n = i / 2;
        *(float4 *)(to + main.plane * PLANE + word_of(m / 4 * 16 + main.slot, n / 4 * 16 + main.line + n % 4)) =
            make_float4(sum[m + 1][n], sum[m][n], sum[m + 3][n], sum[m + 2][n]);
    }
#pragma unroll
    for (int n = 0; n < 2; n++)
        *(float4 *)(to + quarter.plane * PLANE + word_of(quarter.slot, quarter.line + n)) = make_float4(rest[1][n], rest[0][n], rest[3][n], rest[2][n]);
}

/* What a thread block computes: group, first tile, block of filters. */
struct Block { int group, tile, filters; };

/* Stores `out`, the outputs of two filters if rows are whole vectors (NCHW), or of two tiles, where lanes have neighbouring filters (NHWC).
 * PLAIN: from registers. Else through shared memory, over accumulators that this thread has read, so that a rolled loop has the epilogue once. */
template <bool NHWC, bool PLAIN>
__device__ inline void store(const Conv &c, const Epilogue<float, float> &epilogue, const Block &block, const float (&out)[32], float *shared) {
    const unsigned thread = thread_again();
    if constexpr (!PLAIN)
#pragma unroll
        for (int i = 0; i < 32; i++) shared[i % 16 * PLANE + swapped(thread % 32, thread / 32 + i / 16 * 16)] = out[i];
    float *const to = (float *)c.out;
    const int all = c.groups * c.filters, row = NHWC ? c.out_w * all : c.out_w;
    const bool old = epilogue.beta != 0;
    enum { PAIRS = PLAIN ? 2 : 1, ROWS = PLAIN ? 4 : 1 }; /* how far loops are unrolled */
#pragma unroll PAIRS
    for (int i = 0; i < 2; i++) {
        const int slot = (int)(thread % 32), line = (int)(thread / 32 + 16 * i);
        const int number = block.tile + (NHWC ? line : slot), filter = block.filters * SIDE + (NHWC ? slot : line);
        if (number >= c.windows || filter >= c.filters) continue;
        const Corner corner = corner_of(c, number);
        const int f = block.group * c.filters + filter, high = c.out_h - corner.p, wide = c.out_w - corner.q;
        const int64_t first = (int64_t)corner.p * c.out_w + corner.q;
        float *const at = to + (NHWC ? ((int64_t)corner.n * c.out_h * c.out_w + first) * all + f : ((int64_t)corner.n * all + f) * c.out_h * c.out_w + first);
        const float *const from = shared + swapped(slot, line);
#pragma unroll ROWS
        for (int r = 0; r < 4; r++) {
            if (r >= high) continue;
            float *const to_row = at + r * row;
            Pack<float, 4> v = {};
            if (!PLAIN && !NHWC && old) v = *(const Pack<float, 4> *)to_row;
            float sum[4];
#pragma unroll
            for (int q = 0; q < 4; q++) {
                sum[q] = PLAIN ? out[16 * i + 4 * r + q] : from[(4 * r + q) * PLANE];
                if (PLAIN) v.value[q] = sum[q];
                else if (NHWC && old && q < wide) v.value[q] = to_row[q * all];
            }
            if (!PLAIN) epilogue.finish(sum, v.value, [&](int) { return f; });
#pragma unroll
            for (int q = 0; q < 4; q++)
                if (NHWC && q < wide) to_row[q * all] = v.value[q];
            if (!NHWC) *(Pack<float, 4> *)to_row = v;
        }
    }
}

/* The same for NCHW if rows are not whole vectors. All threads of the block must have read their accumulators. */
template <bool PLAIN>
__device__ inline void store_words(const Conv &c, const Epilogue<float, float> &epilogue, const Block &block, const float (&out)[32], float *shared) {
    const unsigned thread = thread_again();
    const int number = block.tile + (int)(thread % 32), plane = c.out_h * c.out_w;
    const Corner corner = corner_of(c, number);
    const int high = number < c.windows ? c.out_h - corner.p : 0, wide = c.out_w - corner.q;
    const int tile = corner.n * c.groups * c.filters * plane + corner.p * c.out_w + corner.q; /* of filter 0; up to 2^30, as tensors */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int filter = block.filters * SIDE + (int)(thread / 32) + 16 * i, f = block.group * c.filters + filter;
        if (filter < c.filters) store_rows<PLAIN>(c, epilogue, out + 16 * i, {tile + f * plane, high, wide, f}, shared + thread / 32 * ROOM);
    }
}

/* reduce_parts() for the two blocks of a cluster, through the first block's shared memory; returns true in the first block. */
__device__ inline bool reduce_in_cluster(const Tile &t, float (&out)[32], char *shared) {
#ifndef PYSIM_COPIES_BY_THREADS
    const unsigned at = thread_again() * 16;
    hopper::cluster_sync(); /* the first block has read its accumulators */
    if (t.part == 1) {
        const uint32_t to = hopper::address_at(shared_address(shared) + at, 0);
#pragma unroll
        for (int i = 0; i < 8; i++) hopper::store_at(to + i * THREADS * 16, out + 4 * i);
    }
    hopper::cluster_sync();
    if (t.part == 0) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float v[4];
            read_16(v, shared + i * THREADS * 16 + at);
#pragma unroll
            for (int j = 0; j < 4; j++) out[4 * i + j] += v[j];
        }
        __syncthreads();
    }
#else
    (void)out, (void)shared; /* one block computes all parts */
#endif
    return t.part == 0;
}

template <class Filters> constexpr int shared_bytes = 2 * (TILE_BYTES + (int)Filters::BYTES) + (int)Filters::SHARED_BYTES;

template <bool NHWC, int PIECE, class Filters> __global__ __launch_bounds__(THREADS, 1) void fused4_kernel(const __grid_constant__ Conv c) {
    if constexpr (CODE_CAPABILITY < Filters::CAPABILITY) return;
    static_assert(LARGE * PLANE * 4 <= shared_bytes<Filters>, "the epilogue reuses the stages");
    PYSIM_DYNAMIC_SHARED(shared);
    __shared__ struct { /* in shared memory, since the loop needs all registers */
        Tile tile;
        alignas(Work) char work[sizeof(Work)];
        bool valid;
        int last;
        uint64_t arrivals[2]; /* Stages */
    } now;
    const Problem &p = c.product;
    Work &work = *(Work *)now.work;
    const bool in_cluster = Filters::CLUSTER_SPLIT && p.kind == PYSIM_SPLIT_K && !p.partials; /* a cluster has the parts of one tile */
    if (threadIdx.x == 0) {
        const Grid grid(p, SIDE, SIDE, STEP);
        new (now.work) Work(p, grid, in_cluster ? (int)blockIdx.x % p.splits * grid.tiles() + (int)blockIdx.x / p.splits : blockIdx.x, gridDim.x);
    }
    while (true) {
        if (thread_again() == 0) {
            now.valid = work.next(now.tile), Stages::begin(now.arrivals, Filters::COPIES);
#ifdef PYSIM_COPIES_BY_THREADS
            if (in_cluster) now.valid = now.valid && now.tile.part == 0, now.tile.end = ceil_div(c.channels, STEP); /* one block, all parts */
#endif
        }
        __syncthreads();
        if (!now.valid) return;
        const Tile &t = now.tile;
        const auto block = [&] { /* recomputed after the loop, so that it holds no registers in it */
            const int tiles = NHWC ? t.i : t.j, group = tiles / c.group_tiles;
            return Block{group, (tiles - group * c.group_tiles) * SIDE, NHWC ? t.j : t.i};
        };
        const Block of = block();
        float sum[8][8], rest[4][2];
#pragma unroll
        for (int i = 0; i < 64; i++) sum[i / 8][i % 8] = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) rest[i / 2][i % 2] = 0;
        sum_planes(Halves<NHWC, PIECE>(c, of.group, of.tile, t.begin * STEP, min(t.end * STEP, c.channels), threadIdx.x),
                         Filters(c, of.group, of.filters, t.begin, t.end), Stages(now.arrivals), t.end - t.begin, sum, rest, shared);
        __syncthreads(); /* all threads have read their fragments */
        const unsigned thread = thread_again();
        if (thread == 0) Stages::end(now.arrivals);
        put((float *)shared, sum, rest, thread);
        __syncthreads();
        float out[32];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float *const from = (const float *)shared + swapped(thread % 32, thread / 32 + 16 * i);
            transform_out(out + 16 * i, [&](int p) { return from[p * PLANE]; });
        }
        const auto in_workspace = [&] { return reduce_parts(p, work, t, out, (int)thread, THREADS, &now.last, [] { __syncthreads(); }); };
        if (in_cluster ? reduce_in_cluster(t, out, shared) : in_workspace()) {
            mend<16>(out, [&](int which) {
                const Block at = block();
                const int slot = (int)(thread_again() % 32), line = (int)(thread_again() / 32) + which / 16 * 16;
                const int number = at.tile + (NHWC ? line : slot), filter = at.filters * SIDE + (NHWC ? slot : line);
                if (number >= c.windows || filter >= c.filters) return 0.f;
                const Corner corner = corner_of(c, number);
                return direct_sum(c, at.group, filter, corner.n, corner.p + which / 4 % 4, corner.q + which % 4);
            });
            const Epilogue<float, float> epilogue(p);
            if (NHWC || by_fours(c)) {
                if (epilogue.plain) store<NHWC, true>(c, epilogue, block(), out, (float *)shared);
                else store<NHWC, false>(c, epilogue, block(), out, (float *)shared);
            } else {
                __syncthreads();
                if (epilogue.plain) store_words<true>(c, epilogue, block(), out, (float *)shared);
                else store_words<false>(c, epilogue, block(), out, (float *)shared);
            }
        }
        Stages::written(); /* the stages are free: the next tile's copies may write them */
        __syncthreads();
    }
}
}
#endif
