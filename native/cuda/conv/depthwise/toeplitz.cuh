/* SPDX-License-Identifier: Apache-2.0
 * Depthwise convolution along rows of pixels whose channels lie last, by tensor cores: kernels of one row, stride 1, two-byte types. Of
 * one channel
 *
 *     out[s + 8 j + i] = sum over h and k of in[s + 8 (j + h) + k] w[8 h + k - i],    0 <= i, k < 8, weights beyond the taps are zeros:
 *
 * 16 windows of pixels that begin at s = 0, SPAN, 2 SPAN ... times a Toeplitz matrix of weights, mma.m16n8k16 for two h. A block has
 * OUTPUTS columns of 64 channels. Its pixels pass through shared memory, where a channel's columns are neighbours, in chunks of eight; a
 * warp multiplies eight channels, and puts results in their place. Chunks are swizzled so that no access has a bank conflict.
 *
 * The matrix's zeros would make NaN of what is not finite, so a block with such a pixel sums as the definition says.
 *
 * Worked number: 63 taps are 9 chunks, 5 instructions for 128 outputs: 10,240 multiply-adds, of which 8,064 count. */
#ifndef PYSIM_CUDA_CONV_DEPTHWISE_TOEPLITZ_CUH
#define PYSIM_CUDA_CONV_DEPTHWISE_TOEPLITZ_CUH
#include "conv/depthwise/staged.cuh"
#include "core/ptx.cuh"

namespace pysim {
namespace {

/* Pairs of chunks, of which some hold weights of so many taps for one of eight outputs. */
constexpr int toeplitz_pairs(int taps) { return ((taps + 14) / 8 + 1) / 2; }

/* PAIRS: toeplitz_pairs. */
template <class T, int PAIRS> struct Toeplitz {
    enum { EIGHT = limit::TOEPLITZ_CHUNK, BLOCK = limit::TOEPLITZ_CHANNELS, LANES = BLOCK / EIGHT, WINDOWS = 16 /* rows of mma */ };
    enum { OUTPUTS = limit::TOEPLITZ_COLUMNS, SPAN = OUTPUTS / WINDOWS, STEPS = SPAN / EIGHT };
    enum { READ = WINDOWS * STEPS + 2 * PAIRS, CHUNKS = (READ + 7) / 8 * 8, ROW = CHUNKS * EIGHT, SHARED = BLOCK * ROW * 2 };
    enum { WARPS = THREADS / 32, BLOCKS = PAIRS > 4 ? 2 : 3 /* on an SM of 227 KiB */ };
    static_assert(sizeof(T) == 2 && (int)WARPS == (int)LANES, "a warp has the channels of a lane");
    using Vector = Pack<T, EIGHT>;
    /* Two columns, of which the first is a multiple of two, of a channel. */
    static __device__ unsigned *at(char *memory, int channel, int chunk, int word) {
        return (unsigned *)memory + channel * (ROW / 2) + (chunk ^ (chunk >> 3 & 3) ^ channel / EIGHT) * (EIGHT / 2) + word;
    }
    static __device__ unsigned odd(unsigned word) { /* not zero where an element is not finite */
        const unsigned exponent = std::is_same_v<T, __half> ? 0x7c007c00u : 0x7f807f80u, unit = exponent & ~(exponent << 1);
        return ((word & exponent) + unit) & 0x80008000u;
    }
};

/* The block's pixels, columns of a channel side by side. Returns whether all are finite. Several loads of a thread are on their way at once. */
template <class T, int PAIRS> __device__ bool load_columns(const Conv &c, const BlockPlace<T, Toeplitz<T, PAIRS>> &at, char *memory) {
    using S = Toeplitz<T, PAIRS>;
    enum { TOGETHER = 5 };
    const int lane = (int)threadIdx.x % 32, channel = lane % S::LANES * S::EIGHT, word = lane / S::LANES;
    const bool exists = at.chunk + channel < c.groups;
    unsigned odd = 0;
#pragma unroll 1
    for (int first = (int)threadIdx.x / 32; first < S::READ; first += TOGETHER * S::WARPS) {
        uint4 found[TOGETHER][2];
#pragma unroll
        for (int i = 0; i < 2 * TOGETHER; i++) {
            const int chunk = first + i / 2 * S::WARPS, column = chunk * S::EIGHT + 2 * word + i % 2;
            found[i / 2][i % 2] =
                exists & at.has(column) & (chunk < S::READ) ? *(const uint4 *)(at.pixel(c, column) + channel) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            const int chunk = first + i * S::WARPS;
            if (chunk >= S::READ) break;
            const unsigned even[4] = {found[i][0].x, found[i][0].y, found[i][0].z, found[i][0].w},
                           next[4] = {found[i][1].x, found[i][1].y, found[i][1].z, found[i][1].w};
#pragma unroll
            for (int pair = 0; pair < 4; pair++) {
                odd |= S::odd(even[pair]) | S::odd(next[pair]);
                *S::at(memory, channel + 2 * pair, chunk, word) = __byte_perm(even[pair], next[pair], 0x5410);
                *S::at(memory, channel + 2 * pair + 1, chunk, word) = __byte_perm(even[pair], next[pair], 0x7632);
            }
        }
    }
    return odd == 0;
}

/* Weights 8 h + 2 (lane mod 4) - lane / 4 of a channel, and the next ones: the two elements of a word of B. */
template <class T, int N> __device__ void load_weights(const Conv &c, int channel, unsigned short (&found)[2 * N]) {
    const int lane = (int)threadIdx.x % 32, first = lane % 4 * 2 - lane / 4;
    const unsigned short *const own = (const unsigned short *)c.weights + ((int64_t)channel * c.kernel_w + first);
    const int taps = channel < c.groups ? c.kernel_w : 0;
#pragma unroll
    for (int i = 0; i < 2 * N; i++)
        found[i] = (unsigned)(8 * (i / 2) + i % 2 + first) < (unsigned)taps ? own[8 * (i / 2) + i % 2] : (unsigned short)0;
}

/* The sums of a channel: of step j those of output 8 j + 2 (lane mod 4) + i mod 2 of window lane / 4 + 8 (i / 2). */
template <class T, int PAIRS> __device__ void multiply(char *memory, int channel, const unsigned (&weights)[2 * PAIRS],
                                                       float (&sum)[Toeplitz<T, PAIRS>::STEPS][4]) {
    using S = Toeplitz<T, PAIRS>;
    const int lane = (int)threadIdx.x % 32, window = lane % 16, half = lane / 16;
    unsigned before[4] = {}, pixels[4];
#pragma unroll
    for (int two = 0; two <= S::STEPS / 2 + PAIRS - 1; two++) {
        load_matrices<false>(pixels, S::at(memory, channel, window * S::STEPS + 2 * two + half, 0));
#pragma unroll
        for (int j = 0; j < S::STEPS; j += 2) {
            const int even = two - j / 2, odd = even - 1; /* the pair of weights that meets these pixels, or those shifted by a chunk */
            if (even >= 0 && even < PAIRS) mma(sum[j], pixels, &weights[2 * even], T());
            const unsigned shifted[4] = {before[2], before[3], pixels[0], pixels[1]};
            if (odd >= 0 && odd < PAIRS) mma(sum[j + 1], shifted, &weights[2 * odd], T());
        }
#pragma unroll
        for (int i = 0; i < 4; i++) before[i] = pixels[i];
    }
}

/* As the definition says, for a block with a pixel that is not finite. */
template <class T, int PAIRS, class To> __device__ void sum_plainly(const Conv &c, const BlockPlace<T, Toeplitz<T, PAIRS>> &at,
                                                                    const To &to) {
    using S = Toeplitz<T, PAIRS>;
    for (int i = (int)threadIdx.x; i < at.count * S::BLOCK; i += THREADS) {
        const int column = i / S::BLOCK, channel = i % S::BLOCK;
        if (at.chunk + channel >= c.groups) continue;
        float sum = 0;
        for (int tap = 0; tap < c.kernel_w; tap++) {
            const float x = at.has(column + tap) ? float(at.pixel(c, column + tap)[channel]) : 0.f;
            sum = fmaf(x, float(((const T *)c.weights)[(int64_t)(at.chunk + channel) * c.kernel_w + tap]), sum);
        }
        to.store(at.line * c.out_w + at.q + column, at.chunk + channel, sum);
    }
}

/* Results from shared memory, 16 bytes of channels at once. */
template <class T, int PAIRS> __device__ void store_columns(const Conv &c, const BlockPlace<T, Toeplitz<T, PAIRS>> &at, char *memory) {
    using S = Toeplitz<T, PAIRS>;
    const int lane = (int)threadIdx.x % 32, channel = lane % S::LANES * S::EIGHT, word = lane / S::LANES;
    if (at.chunk + channel >= c.groups) return;
    T *const to = (T *)c.out + (int64_t)(at.line * c.out_w + at.q) * c.product.ldc + at.chunk + channel;
#pragma unroll 2
    for (int chunk = (int)threadIdx.x / 32; chunk < S::OUTPUTS / S::EIGHT; chunk += S::WARPS) {
        unsigned two[2][4];
#pragma unroll
        for (int pair = 0; pair < 4; pair++) {
            const unsigned first = *S::at(memory, channel + 2 * pair, chunk, word),
                           second = *S::at(memory, channel + 2 * pair + 1, chunk, word);
            two[0][pair] = __byte_perm(first, second, 0x5410), two[1][pair] = __byte_perm(first, second, 0x7632);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int column = chunk * S::EIGHT + 2 * word + i;
            if (column < at.count)
                *(uint4 *)(to + (int64_t)column * c.product.ldc) = make_uint4(two[i][0], two[i][1], two[i][2], two[i][3]);
        }
    }
}

/* The results of a warp's channels: in their place in shared memory if all are stored from there, else where they belong. */
template <class T, class Out, int PAIRS>
__device__ void convolve(const Conv &c, const BlockPlace<T, Toeplitz<T, PAIRS>> &at, const Epilogue<float, Out> &to, bool waits,
                         char *memory) {
    using S = Toeplitz<T, PAIRS>;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    unsigned short next[4 * PAIRS]; /* of the next channel: on their way while this one is multiplied */
    load_weights<T, 2 * PAIRS>(c, at.chunk + warp * S::EIGHT, next);
#pragma unroll 1
    for (int i = 0; i < S::EIGHT; i++) {
        const int own = warp * S::EIGHT + i, channel = at.chunk + own;
        if (channel >= c.groups) break;
        unsigned weights[2 * PAIRS];
#pragma unroll
        for (int h = 0; h < 2 * PAIRS; h++) weights[h] = next[2 * h] | (unsigned)next[2 * h + 1] << 16;
        load_weights<T, 2 * PAIRS>(c, i + 1 < S::EIGHT ? channel + 1 : c.groups, next);
        float sum[S::STEPS][4] = {}, all[4 * S::STEPS];
        multiply<T, PAIRS>(memory, own, weights, sum);
        __syncwarp(); /* all lanes have read the channel's pixels */
#pragma unroll
        for (int e = 0; e < 4 * S::STEPS; e++) all[e] = sum[e / 4][e % 4];
        if (!waits) {
#pragma unroll 1
            for (int e = 0; e < 4 * S::STEPS; e++) {
                const int column = (lane / 4 + e % 4 / 2 * 8) * S::SPAN + e / 4 * S::EIGHT + lane % 4 * 2 + e % 2;
                if (column < at.count) to.store(at.line * c.out_w + at.q + column, channel, all[0]);
#pragma unroll
                for (int n = 1; n < 4 * S::STEPS; n++) all[n - 1] = all[n];
            }
            continue;
        }
        T value[4 * S::STEPS] = {};
        if (to.plain)
#pragma unroll
            for (int e = 0; e < 4 * S::STEPS; e++) value[e] = T(all[e]);
        else if constexpr (std::is_same_v<T, Out>) to.finish(all, value, [&](int) { return channel; });
#pragma unroll
        for (int e = 0; e < 4 * S::STEPS; e += 2) {
            unsigned word;
            memcpy(&word, &value[e], 4);
            *S::at(memory, own, (lane / 4 + e % 4 * 4) * S::STEPS + e / 4, lane % 4) = word;
        }
    }
}

template <class T, class Out, int PAIRS>
__global__ void __launch_bounds__(THREADS, Toeplitz<T, PAIRS>::BLOCKS) toeplitz_kernel(const __grid_constant__ Conv c) {
    if constexpr (CODE_CAPABILITY >= 80) {
        using S = Toeplitz<T, PAIRS>;
        PYSIM_DYNAMIC_SHARED(memory);
        __shared__ int odd;
        const BlockPlace<T, S> at(c);
        Problem p = c.product;
        p.c = c.out, p.m = c.windows, p.n = c.groups;
        const Epilogue<float, Out> to(p);
        if (threadIdx.x == 0) odd = 0;
        __syncthreads();
        if (!load_columns(c, at, memory)) odd = 1;
        __syncthreads();
        if (odd) return sum_plainly(c, at, to);
        /* results wait for those of other channels if they are stored as whole vectors, and are not added to what is there */
        const bool waits = std::is_same_v<T, Out> && p.beta == 0 && (uintptr_t)c.out % 16 == 0 && p.ldc % S::EIGHT == 0;
        convolve(c, at, to, waits, memory);
        if (!waits) return;
        __syncthreads();
        store_columns(c, at, memory);
    }
}

/* The kernel of a problem, and its shared memory. */
template <class T, int PAIRS = 1, class With> auto with_toeplitz(const Conv &c, With with) {
    if constexpr (PAIRS < toeplitz_pairs(limit::SEQUENCE_TAPS))
        if (toeplitz_pairs(c.kernel_w) > PAIRS) return with_toeplitz<T, PAIRS + 1>(c, with);
    return with(c.product.c_dtype == PYSIM_F32 ? toeplitz_kernel<T, float, PAIRS> : toeplitz_kernel<T, T, PAIRS>,
                (int)Toeplitz<T, PAIRS>::SHARED);
}

template <class T> pysim_status launch_toeplitz(const Conv &c, int, cudaStream_t stream) {
    using S = Toeplitz<T, 1>;
    if ((uintptr_t)c.in % 16)
        return fail(PYSIM_UNSUPPORTED,
                    "a depthwise convolution of sequences reads 16 bytes at once; its input, at %p, must begin at a multiple of them",
                    c.in);
    const dim3 grid((unsigned)(c.batch * c.out_h * ceil_div(c.out_w, S::OUTPUTS)) * (unsigned)ceil_div(c.groups, S::BLOCK));
    const cudaError_t error = with_toeplitz<T>(c, [&](auto kernel, int shared) {
        const cudaError_t allowed = cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
        return allowed != cudaSuccess ? allowed : launch(kernel, grid, dim3(THREADS), (size_t)shared, stream, c);
    });
    return check(error, "a depthwise convolution of sequences");
}
template <class T> cudaError_t attributes_of_toeplitz(const Conv &c, pysim_cuda_attributes *out) {
    return with_toeplitz<T>(c, [&](auto kernel, int shared) { return attributes_of(kernel, THREADS, shared, out); });
}
}
}
#endif
