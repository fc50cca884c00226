/* SPDX-License-Identifier: Apache-2.0
 * Measures a GPU: cycles of a shared-memory instruction, multiply-adds per cycle, and the bandwidth of memory and L2.
 *
 * Shared memory: every warp of one block issues the same load or store ISSUED times, UNROLLED of them between two branches, and reads the
 * SM's clock before and after. This is the method of openCNN's Table 1 (Mathematics 2021, 9(17), 2033: one warp, 128 x 128 instructions);
 * with many warps it measures throughput:
 *
 *     cycles per instruction = (last end - first start) / (warps x ISSUED)
 *
 * Loads are volatile, so that the compiler neither drops nor merges them. Each has its own destination registers, so a warp waits for loads
 * only at the branch. The last loads are not waited for, an error of one latency in 16384 instructions. A dependent load takes its address
 * from the previous load: each word in memory holds its own address.
 *
 * On sm_90, nvcc 13.0 spaces the loads and stores of a warp by four cycles (stall counts in the machine code). One warp alone therefore
 * shows at least 4 cycles per instruction, however few wavefronts there are. Many warps hide this.
 *
 * Worked number: 16 warps with 16384 conflict-free loads of 16 bytes each need 16 x 16384 x 4 wavefronts; at one per cycle these are
 * 1,048,576 cycles, 4 per instruction, 128 bytes a cycle. */
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "abi/status.h"

namespace pysim {
namespace {

enum { ISSUED = 16384, UNROLLED = 256, WARPS = PYSIM_CUDA_PROBE_WARPS, REGION = PYSIM_CUDA_PROBE_REGION, LANES = 32 };
enum Kind { LOAD, STORE, CHAIN };

/* What a warp writes to the caller's scratch memory. `sink` uses its loads' results, so that the compiler keeps the loads. */
struct Stamp {
    long long start, end;
    unsigned sink[2];
};
enum { MOST_STAMPS = 32 };
static_assert(sizeof(Stamp) * MOST_STAMPS <= PYSIM_CUDA_PROBE_BYTES, "one stamp for each warp of the largest block");

__device__ long long now() {
    long long cycles;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(cycles));
    return cycles;
}

__device__ void load(unsigned (&to)[1], unsigned address) { asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(to[0]) : "r"(address)); }
__device__ void load(unsigned (&to)[2], unsigned address) {
    asm volatile("ld.volatile.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address));
}
__device__ void load(unsigned (&to)[4], unsigned address) {
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address));
}
__device__ void store(unsigned address, const unsigned (&from)[1]) {
    asm volatile("st.volatile.shared.u32 [%0], %1;" ::"r"(address), "r"(from[0]));
}
__device__ void store(unsigned address, const unsigned (&from)[2]) {
    asm volatile("st.volatile.shared.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(from[0]), "r"(from[1]));
}
__device__ void store(unsigned address, const unsigned (&from)[4]) {
    asm volatile("st.volatile.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(from[0]), "r"(from[1]), "r"(from[2]),
                 "r"(from[3]));
}

template <int WORDS, Kind KIND> __global__ void __launch_bounds__(LANES *WARPS) shared_kernel(pysim_cuda_shared_probe p, Stamp *stamps) {
    extern __shared__ uint4 memory[];
    const unsigned lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    unsigned address = (unsigned)__cvta_generic_to_shared(memory) + warp * REGION;
    unsigned value[WORDS] = {};
    const bool active = p.active >> lane & 1;
    if (active) {
        address += p.offsets[lane];
        value[0] = address; /* lanes with the same address store the same value */
        store(address, value);
    }
    __syncthreads();
    if (!active) return;
    /* distinct values: equal ones would share a register and be copied in the loop */
    for (int i = 0; i < WORDS; i++) value[i] += (i + 1) * p.warps * (KIND != CHAIN);
    const long long start = now();
#pragma unroll 1
    for (int round = 0; round < ISSUED / UNROLLED; round++)
#pragma unroll
        for (int i = 0; i < UNROLLED; i++) {
            if (KIND == STORE) store(address, value);
            else load(value, KIND == CHAIN ? value[0] : address);
        }
    const long long end = now();
    unsigned sink = 0;
    for (unsigned word : value) sink ^= word;
    if ((int)lane == __ffs((int)p.active) - 1) stamps[warp] = {start, end, {sink, 0}};
}

__device__ float multiply_add(float x, float m, float a) { return fmaf(x, m, a); }
__device__ double multiply_add(double x, double m, double a) { return fma(x, m, a); }
__device__ __half2 multiply_add(__half2 x, __half2 m, __half2 a) { return __hfma2(x, m, a); }
__device__ int multiply_add(int x, int m, int a) { return __dp4a(x, m, a); }

__device__ void make(float &to, float from) { to = from; }
__device__ void make(double &to, float from) { to = from; }
__device__ void make(__half2 &to, float from) { to = __float2half2_rn(from); }
__device__ void make(int &to, float from) { to = __float_as_int(from); }

enum { FMA_THREADS = 1024, CHAINS = 4, FMA_UNROLLED = 64, FMA_ROUNDS = 8192 };

/* x <- m x + a in CHAINS independent chains. |m| is just below 1 and m negative, so x alternates and takes long to converge. */
template <class T> __global__ void __launch_bounds__(FMA_THREADS) fma_kernel(float factor, float addend, Stamp *stamps) {
    T x[CHAINS], m, a;
    make(m, factor), make(a, addend);
#pragma unroll
    for (int i = 0; i < CHAINS; i++) make(x[i], (float)(threadIdx.x * CHAINS + i + 1) / (FMA_THREADS * CHAINS));
    __syncthreads();
    const long long start = now();
#pragma unroll 1
    for (int round = 0; round < FMA_ROUNDS; round++)
#pragma unroll
        for (int i = 0; i < FMA_UNROLLED; i++)
#pragma unroll
            for (int chain = 0; chain < CHAINS; chain++) x[chain] = multiply_add(x[chain], m, a);
#pragma unroll
    for (int i = 1; i < CHAINS; i++) x[0] = multiply_add(x[0], x[i], a);
    unsigned sink[2] = {};
    memcpy(sink, &x[0], sizeof x[0]);
    const long long end = now();
    if (blockIdx.x == 0 && threadIdx.x % LANES == 0) stamps[threadIdx.x / LANES] = {start, end, {sink[0], sink[1]}};
}

__global__ void fill_kernel(uint4 *to, int64_t vectors) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < vectors; i += (int64_t)gridDim.x * blockDim.x) {
        const unsigned word = (unsigned)i * 0x9e3779b9u;
        to[i] = make_uint4(word, ~word, word ^ 0x5bd1e995u, word * 0x85ebca6bu);
    }
}

enum { READ_THREADS = 512, READ_BLOCKS = 4 /* per SM */, AT_ONCE = 4 };

/* .cg: cached in L2 only, so each pass reads L2 or memory; volatile: the compiler keeps each pass. */
__device__ uint4 read(const uint4 *from) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}
__device__ unsigned sum_of(uint4 v) { return v.x + v.y + v.z + v.w; }

__global__ void __launch_bounds__(READ_THREADS) read_kernel(const uint4 *from, int64_t vectors, int passes, Stamp *stamps) {
    const int64_t step = (int64_t)gridDim.x * READ_THREADS;
    unsigned sum = 0;
#pragma unroll 1
    for (int pass = 0; pass < passes; pass++) {
        int64_t i = blockIdx.x * (int64_t)READ_THREADS + threadIdx.x;
        for (; i + (AT_ONCE - 1) * step < vectors; i += AT_ONCE * step) {
            uint4 v[AT_ONCE];
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) v[j] = read(from + i + j * step);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) sum += sum_of(v[j]);
        }
        for (; i < vectors; i += step) sum += sum_of(read(from + i));
    }
    if (sum == 1) stamps[0].sink[0] = sum; /* without a use of the sum the compiler could remove the loads */
}

/* Waits for the kernel; cycles from the first start to the last end of its warps. */
pysim_status cycles_of(const void *scratch, int32_t warps, cudaStream_t on, double *cycles) {
    Stamp stamps[MOST_STAMPS];
    pysim_status status = check(cudaMemcpyAsync(stamps, scratch, sizeof(Stamp) * warps, cudaMemcpyDeviceToHost, on), "a probe's result");
    if (status == PYSIM_OK) status = check(cudaStreamSynchronize(on), "a probe");
    if (status != PYSIM_OK) return status;
    long long start = stamps[0].start, end = stamps[0].end;
    for (int32_t i = 1; i < warps; i++) {
        if (stamps[i].start < start) start = stamps[i].start;
        if (stamps[i].end > end) end = stamps[i].end;
    }
    *cycles = (double)(end - start);
    return PYSIM_OK;
}

/* Device seconds of the work that `launch` enqueues; waits for it. */
template <class Launch> pysim_status timed(cudaStream_t on, double *seconds, Launch launch) {
    cudaEvent_t begin = nullptr, end = nullptr;
    float milliseconds = 0;
    pysim_status status = check(cudaEventCreate(&begin), "an event");
    if (status == PYSIM_OK) status = check(cudaEventCreate(&end), "an event");
    if (status == PYSIM_OK) status = check(cudaEventRecord(begin, on), "an event");
    if (status == PYSIM_OK) launch();
    if (status == PYSIM_OK) status = check(cudaGetLastError(), "a probe");
    if (status == PYSIM_OK) status = check(cudaEventRecord(end, on), "an event");
    if (status == PYSIM_OK) status = check(cudaEventSynchronize(end), "a probe");
    if (status == PYSIM_OK) status = check(cudaEventElapsedTime(&milliseconds, begin, end), "an event");
    if (begin) cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
    *seconds = milliseconds * 1e-3;
    return status;
}

pysim_status check_call(const char *name, const void *scratch, int32_t samples, bool results) {
    if (!scratch || (uintptr_t)scratch % alignof(Stamp))
        return fail(PYSIM_BAD_ARGUMENT, "%s: scratch is %p; it should be device memory aligned to %d bytes", name, scratch,
                    (int)alignof(Stamp));
    if (samples < 1 || !results)
        return fail(PYSIM_BAD_ARGUMENT, "%s: samples is %d; it should be at least 1, and the results not NULL", name, samples);
    return PYSIM_OK;
}

pysim_status check_shared(const pysim_cuda_shared_probe *p) {
    if (!p) return fail(PYSIM_BAD_ARGUMENT, "pysim_cuda_probe_shared: probe is NULL");
    if (p->width_bytes != 4 && p->width_bytes != 8 && p->width_bytes != 16)
        return fail(PYSIM_BAD_ARGUMENT, "width_bytes is %d; it should be 4, 8 or 16", p->width_bytes);
    if ((p->is_store | p->dependent) & ~1 || (p->is_store && p->dependent))
        return fail(PYSIM_BAD_ARGUMENT, "is_store and dependent are %d and %d; each is 0 or 1, and only loads are dependent", p->is_store,
                    p->dependent);
    if (p->warps < 1 || p->warps > WARPS) return fail(PYSIM_BAD_ARGUMENT, "warps is %d; it should be 1 to %d", p->warps, WARPS);
    if (!p->active) return fail(PYSIM_BAD_ARGUMENT, "active is 0; one lane at least should take part");
    for (int lane = 0; lane < LANES; lane++) {
        const int32_t offset = p->offsets[lane];
        if ((p->active >> lane & 1) && (offset < 0 || offset > REGION - p->width_bytes || offset % p->width_bytes))
            return fail(PYSIM_BAD_ARGUMENT, "lane %d has the offset %d; it should be a multiple of %d from 0 to %d", lane, offset,
                        p->width_bytes, REGION - p->width_bytes);
    }
    return PYSIM_OK;
}

using Shared = void (*)(pysim_cuda_shared_probe, Stamp *);
template <int WORDS> Shared shared_of(const pysim_cuda_shared_probe *p) {
    return p->is_store ? shared_kernel<WORDS, STORE> : p->dependent ? shared_kernel<WORDS, CHAIN> : shared_kernel<WORDS, LOAD>;
}

pysim_status current_sms(int *sms) {
    int device;
    const pysim_status status = check(cudaGetDevice(&device), "the current device");
    return status == PYSIM_OK ? check(cudaDeviceGetAttribute(sms, cudaDevAttrMultiProcessorCount, device), "the device's SMs") : status;
}
}
}

using pysim::check;
using pysim::fail;
using pysim::Stamp;

pysim_status pysim_cuda_probe_shared(const pysim_cuda_shared_probe *probe, void *scratch, int32_t samples, double *cycles_per_instruction,
                                     void *stream) {
    pysim_status status = pysim::check_shared(probe);
    if (status == PYSIM_OK) status = pysim::check_call("pysim_cuda_probe_shared", scratch, samples, cycles_per_instruction != nullptr);
    if (status != PYSIM_OK) return status;
    const cudaStream_t on = (cudaStream_t)stream;
    const pysim::Shared kernel = probe->width_bytes == 4   ? pysim::shared_of<1>(probe)
                                 : probe->width_bytes == 8 ? pysim::shared_of<2>(probe)
                                                           : pysim::shared_of<4>(probe);
    const int bytes = probe->warps * pysim::REGION;
    status = check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory of a probe");
    for (int32_t i = -1; i < samples && status == PYSIM_OK; i++) {
        double cycles = 0;
        kernel<<<1, pysim::LANES * probe->warps, bytes, on>>>(*probe, (Stamp *)scratch);
        status = check(cudaGetLastError(), "a probe of shared memory");
        if (status == PYSIM_OK) status = pysim::cycles_of(scratch, probe->warps, on, &cycles);
        if (i >= 0) cycles_per_instruction[i] = cycles / ((double)pysim::ISSUED * probe->warps);
    }
    return status;
}

pysim_status pysim_cuda_probe_fma(int32_t dtype, void *scratch, int32_t samples, double *per_cycle, double *per_second, void *stream) {
    pysim_status status = pysim::check_call("pysim_cuda_probe_fma", scratch, samples, per_cycle && per_second);
    if (status != PYSIM_OK) return status;
    void (*kernel)(float, float, Stamp *) = dtype == PYSIM_F32   ? pysim::fma_kernel<float>
                                            : dtype == PYSIM_F64 ? pysim::fma_kernel<double>
                                            : dtype == PYSIM_F16 ? pysim::fma_kernel<__half2>
                                            : dtype == PYSIM_S8  ? pysim::fma_kernel<int>
                                                                 : nullptr;
    if (!kernel) return fail(PYSIM_UNSUPPORTED, "dtype %d has no multiply-add probe; f32, f64, f16 and s8 have", dtype);
    int sms = 0;
    status = pysim::current_sms(&sms);
    const cudaStream_t on = (cudaStream_t)stream;
    const int products = dtype == PYSIM_F16 ? 2 : dtype == PYSIM_S8 ? 4 : 1; /* products per lane and instruction */
    const double block = (double)pysim::FMA_THREADS * pysim::CHAINS * pysim::FMA_UNROLLED * pysim::FMA_ROUNDS * products;
    for (int32_t i = -1; i < samples && status == PYSIM_OK; i++) {
        double seconds = 0, cycles = 0;
        /* one block on each SM */
        status =
            pysim::timed(on, &seconds, [&] { kernel<<<sms, pysim::FMA_THREADS, 0, on>>>(-1.0f + 0x1p-20f, 0.7182818f, (Stamp *)scratch); });
        if (status == PYSIM_OK) status = pysim::cycles_of(scratch, pysim::FMA_THREADS / pysim::LANES, on, &cycles);
        if (i >= 0) per_cycle[i] = block / cycles, per_second[i] = block * sms / seconds;
    }
    return status;
}

pysim_status pysim_cuda_probe_read(void *buffer, int64_t bytes, int32_t passes, void *scratch, int32_t samples, double *bytes_per_second,
                                   void *stream) {
    pysim_status status = pysim::check_call("pysim_cuda_probe_read", scratch, samples, bytes_per_second != nullptr);
    if (status != PYSIM_OK) return status;
    if (!buffer || (uintptr_t)buffer % 16 || bytes < 16 || bytes % 16)
        return fail(PYSIM_BAD_ARGUMENT, "buffer is %p of %lld bytes; it should be aligned to 16 and a multiple of 16 bytes", buffer,
                    (long long)bytes);
    if (passes < 1) return fail(PYSIM_BAD_ARGUMENT, "passes is %d; it should be at least 1", passes);
    int sms = 0;
    status = pysim::current_sms(&sms);
    if (status != PYSIM_OK) return status;
    const cudaStream_t on = (cudaStream_t)stream;
    const int64_t vectors = bytes / 16;
    const int blocks = sms * pysim::READ_BLOCKS;
    pysim::fill_kernel<<<blocks, pysim::READ_THREADS, 0, on>>>((uint4 *)buffer, vectors);
    status = check(cudaGetLastError(), "a probe's buffer");
    for (int32_t i = -1; i < samples && status == PYSIM_OK; i++) {
        double seconds = 0;
        status = pysim::timed(on, &seconds, [&] {
            pysim::read_kernel<<<blocks, pysim::READ_THREADS, 0, on>>>((const uint4 *)buffer, vectors, passes, (Stamp *)scratch);
        });
        if (i >= 0) bytes_per_second[i] = (double)bytes * passes / seconds;
    }
    return status;
}
