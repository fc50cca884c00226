/* SPDX-License-Identifier: Apache-2.0
 * Compares the epilogues of the wgmma kernels (mainloop/wgmma/epilogue.cuh), without wgmma, with the definition (core/epilogue.cuh), element by
 * element. Given accumulators are put into the registers where wgmma leaves them. Blocks have several tiles, whose results reuse the same shared
 * memory. Cases: both orders of C, edges, odd pitches, planes that are not whole vectors, every activation of epilogues.inc with and without bias,
 * scale and previous C, every result type. Guard patterns around the results must survive. Needs stmatrix: a device of capability 9.0, or the
 * emulation.
 *
 *   check_epilogue [--cases N]    N: cases per shape and order of C (default 400). Exit status 1 if a case failed, 77 if there is no such device. */
#include "check.h"

#include "mainloop/wgmma/epilogue.cuh"
#include "mainloop/wgmma/shape.h"

namespace {
using namespace pysim;
using namespace pysim::hopper;

/* C in planes, NCHW: images of `plane` windows; the windows of a filter are contiguous. Of S::TAPS > 1 and BY_ROWS: of `per` rows of the product the last
 * TAPS - 1 are none of C. */
struct Planes {
    int plane;
    Divisor per;
};

template <class S> constexpr bool RAGGED = S::TAPS == 1; /* as in products; not in convolutions, which alone have several taps */
template <class S> StoreTerms terms_of(const Problem &p, Planes planes, bool rows) {
    return store_terms_of<S, RAGGED<S>>(p, rows, !rows || p.by_row, rows ? p.ldc : planes.plane, rows ? p.n : planes.plane);
}

template <class S, ResultOrder ORDER, class Use> __device__ void with_target_of(Order<ORDER> order, const Problem &p,
                                                                                const StoreTerms &terms, Planes planes, Use use) {
    const int plane = planes.plane;
    const bool rows = order.by_rows();
    const int64_t pitch = rows ? p.ldc : plane;
    const auto place = [=](int along, bool &here) {
        if (order.by_rows()) return here = along < p.n, (int64_t)along;
        here = along < p.m;
        const int last = min(along, p.m - 1);
        return (int64_t)(last / plane) * p.n * plane + last % plane;
    };
    const int lines = rows ? p.m : p.n, length = rows ? p.n : p.m;
    if constexpr (S::TAPS > 1)
        use(Target{place, Gapped{pitch, planes.per, S::TAPS - 1}, lines, length, terms.by_line, terms.vectors, terms.direct});
    else use(Target{place, pitch, lines, length, terms.by_line, terms.vectors, terms.direct});
}

/* ONE: one code for strips serves both orders. */
template <class S, ResultOrder ORDER, bool ONE> __global__ void store_tiles(Problem p, StoreTerms terms, Planes planes,
                                                                            const typename S::Acc *sums) {
    if constexpr (CODE_CAPABILITY < 90) return; /* no stmatrix */
    using Acc = typename S::Acc;
    const int group = threadIdx.x / 128 % S::GROUPS, tiles_n = ceil_div(p.n, S::BLOCK_N), tiles = ceil_div(p.m, S::BLOCK_M) * tiles_n;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        const int row = tile / tiles_n * S::BLOCK_M + group / (S::BLOCK_N / S::WARP_N) * S::WARP_M;
        const int column = tile % tiles_n * S::BLOCK_N + group % (S::BLOCK_N / S::WARP_N) * S::WARP_N;
        Acc acc[S::PARTS][S::ACCUMULATORS];
#pragma unroll
        for (int part = 0; part < S::PARTS; part++)
#pragma unroll
            for (int i = 0; i < S::ACCUMULATORS; i++) {
                const int r = row + part * 64 + row_of_thread() + i % 4 / 2 * 8, c = column + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
                acc[part][i] = r < p.m && c < p.n ? sums[(int64_t)r * p.n + c] : Acc(77);
            }
        const auto store_by = [&](auto order, auto store) {
            with_target_of<S>(order, p, terms, planes, [&](const auto &target) { store(order, target); });
        };
        store_by(Order<ORDER>(), [&](auto order, const auto &target) {
            if (terms.path != STRIPS) return store_directly<S, RAGGED<S>>(order, terms.path, p, target, row, column, acc);
            if constexpr (!ONE) store_by_strips<S>(order, p, target, row, column, acc);
        });
        if constexpr (ONE)
            store_by(Order<EITHER>{ORDER == BY_ROWS}, [&](auto order, const auto &target) {
                if (terms.path == STRIPS) store_by_strips<S>(order, p, target, row, column, acc);
            });
    }
}

/* The definition, computed by Epilogue for one element at a time. */
template <class S, ResultOrder ORDER> __global__ void define(Problem p, Planes planes, const typename S::Acc *sums) {
    using Acc = typename S::Acc;
    with_result<S::DTYPE, Acc>(p.c_dtype, [&](auto result) {
        const Epilogue<Acc, typename decltype(result)::type> e(p);
        for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (int64_t)p.m * p.n; i += (int64_t)gridDim.x * blockDim.x) {
            const int c = (int)(i % p.n), plane = planes.plane;
            int r = (int)(i / p.n), place;
            if (const int before = planes.per.of(r, place); S::TAPS > 1) {
                if (place > (int)planes.per.divisor - S::TAPS) continue;
                r -= before * (S::TAPS - 1);
            }
            auto &at = e.c[ORDER == BY_ROWS ? r * p.ldc + c : ((int64_t)(r / plane) * p.n + c) * plane + r % plane];
            const Acc one[1] = {sums[i]};
            std::decay_t<decltype(at)> value[1] = {at};
            e.finish(one, value, [&](int) { return ORDER == BY_ROWS && p.by_row ? r : c; });
            at = value[0];
        }
    });
}

Buffer buffer_sums, buffer_c, buffer_want, buffer_old, buffer_bias, buffer_factors;
long long cases, failures;

template <class S, ResultOrder ORDER, bool ONE> void run(unsigned seed, const char *name) {
    enum { HEAD = 1024 };
    using Acc = typename S::Acc;
    int types[3];
    const int type_count = results(S::DTYPE, types);
    unsigned state = seed;
    const auto draw = [&](int n) { return (int)(mix(state += 0x9e3779b9u) % (unsigned)n); };
    Problem p = {};
    p.c_dtype = types[draw(3) ? 0 : draw(type_count)];
    const int result = bytes_of[p.c_dtype], wide = 16 / result;
    p.n = draw(2) ? 1 + draw(2 * S::BLOCK_N + 40) : draw(2) ? 8 * (1 + draw(S::BLOCK_N / 3)) : S::BLOCK_N * (1 + draw(3));
    Planes planes = {};
    planes.plane = draw(3) ? wide * (1 + draw(20)) : 1 + draw(100);
    p.m = ORDER == BY_COLUMNS ? planes.plane * (1 + draw(2 * S::BLOCK_M / planes.plane + 2)) : 1 + draw(2 * S::BLOCK_M + 40);
    p.ldc = ORDER == BY_COLUMNS ? 0 : draw(3) ? (p.n + wide - 1) / wide * wide + wide * draw(2) : p.n + draw(4);
    if (ORDER == BY_ROWS && p.ldc >= wide && draw(2)) p.n = (int)(p.ldc - p.ldc % wide), p.ldc = p.n; /* whole vectors */
    planes.per = Divisor((unsigned)(S::TAPS + draw(3) * draw(30)));
    if (S::TAPS > 1) p.m = (p.m + (int)planes.per.divisor - 1) / (int)planes.per.divisor * (int)planes.per.divisor;
    const int offset = draw(8) ? 0 : 1;
    p.alpha = draw(2) ? 1 : -2, p.beta = draw(2) ? 0 : draw(2) ? 1 : -2;
    const bool whole = sizeof(Acc) == 4 && Acc(0.5f) == Acc(0);
    p.by_row = (short)(ORDER == BY_ROWS && S::TAPS == 1 && !draw(6)), p.activation = activation_of((unsigned)draw(1 << 16), whole);
    p.low = -1, p.high = 1;
    const long long rows = ORDER == BY_ROWS ? (S::TAPS > 1 ? p.m / (int)planes.per.divisor * ((int)planes.per.divisor - S::TAPS + 1) : p.m)
                                            : p.m / planes.plane * (long long)p.n,
                    length = ORDER == BY_ROWS ? p.n : planes.plane;
    const long long pitch = ORDER == BY_ROWS ? p.ldc : planes.plane;
    Acc *const sums = (Acc *)buffer_sums.at((size_t)p.m * p.n * 4);
    each((long long)p.m * p.n, fill, (void *)sums, whole ? PYSIM_S32 : PYSIM_F32, (long long)p.m, (long long)p.n, (long long)p.n, seed, 6);
    const long long lines = p.by_row ? p.m : p.n;
    if (draw(2)) p.bias = filled(buffer_bias, lines, p.c_dtype, seed + 9, 2);
    if (!whole && !draw(4)) p.scale = filled(buffer_factors, lines, PYSIM_F32, seed + 11, 2);
    const size_t total = (size_t)((rows - 1) * pitch + length + offset) * result / 256 * 256 + 256 + 2 * HEAD,
                 head = HEAD + (size_t)(offset * result);
    char *const block = (char *)buffer_c.at(total), *const out = block + head, *const want = (char *)buffer_want.at(total) + head;
    need(cudaMemset(block, 0xff, total), "memset");
    if (p.beta != 0) {
        void *const old = buffer_old.at((size_t)(rows * length) * result);
        each(rows * length, fill, old, p.c_dtype, rows, length, length, seed + 5, 2);
        need(cudaMemcpy2D(out, (size_t)pitch * result, old, (size_t)length * result, (size_t)length * result, (size_t)rows,
                          cudaMemcpyDeviceToDevice),
             "copy");
    }
    need(cudaMemcpy(want - head, block, total, cudaMemcpyDeviceToDevice), "copy");
    cases++;
    p.c = want;
    each((long long)p.m * p.n, define<S, ORDER>, p, planes, (const Acc *)sums);
    p.c = out;
    const auto kernel = store_tiles<S, ORDER, ONE>;
    need(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED_BYTES), "shared memory");
    need(pysim::launch(kernel, 2, 128 * S::GROUPS, S::SHARED_BYTES, nullptr, p, terms_of<S>(p, planes, ORDER == BY_ROWS), planes,
                       (const Acc *)sums),
         name);
    const bool smooth = p.activation > 1 && p.activation != 3;
    double *ones = nullptr;
    if (smooth) { /* compilers may contract the functions' multiply-adds differently */
        ones = (double *)buffer_old.at((size_t)(rows * length) * 8);
        each(rows * length, widen, ones, (const void *)out, p.c_dtype, rows * length);
        need(cudaMemset(ones, 0, (size_t)(rows * length) * 8), "memset");
    }
    const Verdict v = verdict_of(block, total, head, out, want, ones, p.c_dtype, rows, length, pitch, 0, name);
    if ((v.wrong || v.gaps) && ++failures <= 40)
        printf(
            "FAIL %s %s %dx%d plane %d ldc %lld offset %d ->%s alpha %g beta %g bias %d scale %d by_row %d f %d: %llu wrong, the first at %lld of lines of %lld; %llu bytes outside\n",
            name, ORDER == BY_ROWS ? "by rows" : "by columns", p.m, p.n, planes.plane, (long long)p.ldc, offset, name_of[p.c_dtype],
            p.alpha, p.beta, p.bias != nullptr, p.scale != nullptr, p.by_row, p.activation, v.wrong, v.first, length, v.gaps);
}

template <class S> void check_shape(const char *name, int wanted) {
    const long long before = failures;
    for (int i = 0; i < wanted; i++) {
        if constexpr (S::DTYPE == PYSIM_S8 || S::DTYPE == PYSIM_F8 || S::TAPS > 1) run<S, BY_ROWS, false>(mix(2u * (unsigned)i + 1), name);
        else if (i % 3) run<S, BY_ROWS, true>(mix(2u * (unsigned)i + 1), name), run<S, BY_COLUMNS, true>(mix(2u * (unsigned)i + 2), name);
        else run<S, BY_ROWS, false>(mix(2u * (unsigned)i + 1), name), run<S, BY_COLUMNS, false>(mix(2u * (unsigned)i + 2), name);
    }
    printf("%s %s\n", failures == before ? "ok  " : "FAIL", name);
}
}

int main(int argc, char **argv) {
    setbuf(stdout, nullptr);
    int wanted = 400, capability = 90;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--cases") && i + 1 < argc && atoi(argv[i + 1]) > 0) wanted = atoi(argv[++i]);
        else return printf("usage: check_epilogue [--cases N]\n"), 2;
    }
    if (!found_device()) return 77;
#ifndef PYSIM_EMULATED
    cudaDeviceProp device;
    need(cudaGetDeviceProperties(&device, 0), "device");
    capability = 10 * device.major + device.minor;
#endif
    if (capability < 90) return printf("the device has no stmatrix\n"), 77;
    check_shape<Shape<PYSIM_F16, 128, 96, 64, 96, 4, 1, 1>>("f16 64x96", wanted);
    check_shape<Shape<PYSIM_F16, 128, 128, 128, 128, 4, 1, 1>>("f16 128x128", wanted);
    check_shape<Shape<PYSIM_F16, 256, 64, 256, 64, 3, 1, 1, 0, true, 128, 3>>("f16 256x64, taps", wanted);
    check_shape<Shape<PYSIM_BF16, 64, 128, 64, 64, 4, 1, 1>>("bf16 64x64", wanted);
    check_shape<Shape<PYSIM_TF32, 64, 96, 64, 96, 4, 1, 1>>("tf32 64x96", wanted);
    check_shape<Shape<PYSIM_TF32, 128, 32, 128, 32, 4, 1, 1>>("tf32 128x32", wanted);
    check_shape<Shape<PYSIM_S8, 128, 64, 64, 64, 4, 1, 1>>("s8 64x64", wanted);
    check_shape<Shape<PYSIM_F8, 64, 192, 64, 192, 4, 1, 1>>("f8 64x192", wanted);
    printf("%lld cases, %lld failures\n", cases, failures);
    return failures ? 1 : 0;
}
