/* SPDX-License-Identifier: Apache-2.0
 * Compares the kernels of gemm/ with cuBLAS (cublasLt for f8) on the same random operands in one run. For each problem every row with
 * every decomposition below is timed a few times; then the fastest and cuBLAS alternate, one call each.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a lab/benchmarks/cuda/bench.cu -lpysim_cuda -lcublas -lcublasLt -o bench
 *   bench [--dtype f16] [--set main|small|layouts|all] [--kernel SUBSTRING] [--rows] > out.jsonl
 *
 * One JSON line per problem: medians and quartiles of `samples` calls in seconds, ratio = cuBLAS / pysim. Sizes are those of cuBLAS's
 * column-major product, so M x N here is this library's row-major N x M with A and B exchanged. */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../native/pysim_cuda.h"

#define NEED(call) do { auto status_ = (call); if (status_) { printf("{\"error\": \"%s gave %d, line %d: %s\"}\n", #call, (int)status_, __LINE__, pysim_cuda_last_error()); exit(1); } } while (0)

struct Dtype { const char *name; int code, c_code, bytes, c_bytes; cudaDataType ab, c; cublasComputeType_t compute; };
const Dtype dtypes[] = {
    {"f32", PYSIM_F32, PYSIM_F32, 4, 4, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_PEDANTIC},
    {"f64", PYSIM_F64, PYSIM_F64, 8, 8, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F},
    {"tf32", PYSIM_TF32, PYSIM_F32, 4, 4, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32},
    {"f16", PYSIM_F16, PYSIM_F16, 2, 2, CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F},
    {"f16>f32", PYSIM_F16, PYSIM_F32, 2, 4, CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F},
    {"bf16", PYSIM_BF16, PYSIM_BF16, 2, 2, CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F},
    {"s8", PYSIM_S8, PYSIM_S32, 1, 4, CUDA_R_8I, CUDA_R_32I, CUBLAS_COMPUTE_32I},
    {"f8", PYSIM_F8, PYSIM_BF16, 1, 2, CUDA_R_8F_E4M3, CUDA_R_16BF, CUBLAS_COMPUTE_32F},
};
const int main_shape[][3] = {{10240, 4096, 4096}};
const int other_shapes[][3] = {{4096, 4096, 4096}, {8192, 8192, 8192}, {1024, 1024, 1024}, {2048, 2048, 2048}, {512, 512, 512}, {256, 256, 256},
    {128, 4096, 4096}, {16, 4096, 4096}, {10240, 64, 4096}, {64, 10240, 4096}, {5120, 5120, 64}, {4096, 128, 11008}};

__global__ void fill(unsigned *p, size_t words, int code) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words; i += (size_t)gridDim.x * blockDim.x) {
        unsigned x = (unsigned)i * 2654435761u + 5;
        x ^= x >> 13, x *= 0x5bd1e995, x ^= x >> 15, x *= 0x846ca68b, x ^= x >> 16;
        const auto half = [](unsigned bits, int shift) { return (0x3000u + (bits & 0xfff)) << shift | (bits >> 12 & 1) << (15 + shift); }; /* f16: 2^-3..2 */
        switch (code) {
        case PYSIM_F16: p[i] = half(x, 0) | half(x >> 13, 16); break;
        case PYSIM_BF16: p[i] = (0x3e00u + (x & 0x17f)) | (x >> 9 & 1) << 15 | (0x3e00u + (x >> 10 & 0x17f)) << 16 | (x >> 20 & 1) << 31; break;
        case PYSIM_S8: p[i] = x; break;
        case PYSIM_F8: p[i] = x & 0xbfbfbfbf; break; /* e4m3 below 2 */
        case PYSIM_F64: if (i % 2 == 0) ((double *)p)[i / 2] = x / 4294967296.0 - 0.5; break;
        default: ((float *)p)[i] = (float)(x >> 8) / 16777216.f - 0.5f;
        }
    }
}

double quantile(std::vector<double> v, double q) {
    std::sort(v.begin(), v.end());
    return v[(size_t)std::min<double>(v.size() - 1, q * v.size())];
}

cudaEvent_t before, after;
template <class Call> double seconds_of(Call call) {
    float milliseconds;
    NEED(cudaEventRecord(before));
    call();
    NEED(cudaEventRecord(after));
    NEED(cudaEventSynchronize(after));
    NEED(cudaEventElapsedTime(&milliseconds, before, after));
    return milliseconds * 1e-3;
}

struct Candidate { pysim_cuda_schedule s; std::string text; double seconds; int64_t workspace; };

int main(int argc, char **argv) {
    setbuf(stdout, nullptr);
    std::string only, set = "all", dtype_name;
    bool rows = false;
    for (int i = 1; i < argc; i++) {
        const std::string word = argv[i];
        if (word == "--rows") rows = true;
        else if (word == "--kernel" && i + 1 < argc) only = argv[++i];
        else if (word == "--set" && i + 1 < argc) set = argv[++i];
        else if (word == "--dtype" && i + 1 < argc) dtype_name = argv[++i];
        else return fprintf(stderr, "usage: bench [--dtype NAME] [--set main|small|all] [--kernel SUBSTRING] [--rows]\n"), 2;
    }
    NEED(cudaEventCreate(&before));
    NEED(cudaEventCreate(&after));
    cublasHandle_t cublas;
    cublasLtHandle_t lt;
    NEED(cublasCreate(&cublas));
    NEED(cublasLtCreate(&lt));
    const size_t pool = (size_t)1 << 30, space = 64 << 20;
    char *a, *b, *c, *workspace, *cublas_space;
    NEED(cudaMalloc(&a, pool));
    NEED(cudaMalloc(&b, pool));
    NEED(cudaMalloc(&c, pool));
    NEED(cudaMalloc(&workspace, pool));
    NEED(cudaMalloc(&cublas_space, space));
    NEED(cublasSetWorkspace(cublas, cublas_space, space));
    pysim_cuda_device device;
    NEED(pysim_cuda_device_at(0, &device));
    printf("{\"device\": \"%s\", \"driver\": %d, \"runtime\": %d, \"cublas\": %zu}\n", device.name, device.driver, device.runtime, cublasLtGetVersion());
    for (const Dtype &t : dtypes) {
        if (!dtype_name.empty() && dtype_name != t.name) continue;
        fill<<<2048, 256>>>((unsigned *)a, pool / 4, t.code);
        fill<<<2048, 256>>>((unsigned *)b, pool / 4, t.code);
        NEED(cudaDeviceSynchronize());
        std::vector<std::array<int, 4>> problems; /* M, N, K, layout */
        if (set != "small") for (int layout = 0; layout < 4; layout++) problems.push_back({main_shape[0][0], main_shape[0][1], main_shape[0][2], layout});
        if (set != "main") for (const auto &s : other_shapes) problems.push_back({s[0], s[1], s[2], t.code == PYSIM_S8 || t.code == PYSIM_F8 ? 1 : 0});
        for (const auto &problem : problems) {
            const int M = problem[0], N = problem[1], K = problem[2], ta = problem[3] & 1, tb = problem[3] >> 1;
            /* row-major: C'[N][M] = op(B)' op(A)' */
            pysim_cuda_problem p = {PYSIM_GEMM, {}};
            p.gemm = {N, M, K, tb ? N : K, ta ? K : M, M, tb, ta, t.code, t.c_code};
            const pysim_cuda_epilogue e = {1, 0, nullptr, 0, 0, 0, nullptr, 0, nullptr};
            std::vector<Candidate> found;
            for (int i = 0; i < pysim_cuda_gemm_count(); i++) {
                pysim_cuda_gemm_info row;
                NEED(pysim_cuda_gemm_at(i, &row));
                if (row.dtype != t.code || (!only.empty() && !strstr(row.name, only.c_str()))) continue;
                const int tiles = ((N + row.block_m - 1) / row.block_m) * ((M + row.block_n - 1) / row.block_n), steps = (K + row.block_k - 1) / row.block_k;
                for (const int splits : {1, 2, 3, 4, 6, 8, 12, 16, 32, -1}) {
                    pysim_cuda_schedule s = {i, splits > 1 ? PYSIM_SPLIT_K : splits < 0 ? PYSIM_STREAM_K : PYSIM_DATA_PARALLEL, splits < 0 ? device.sms : splits, 0, 8, -1};
                    if (splits > 1 && (splits > steps / 2 || tiles * splits > 6 * device.sms)) continue;
                    if (splits < 0 && (tiles * steps < device.sms || tiles > 8 * device.sms)) continue;
                    int64_t bytes = 0;
                    if (pysim_cuda_workspace_bytes(&p, &s, b, a, &bytes) != PYSIM_OK || bytes > (int64_t)pool) continue;
                    double times[4];
                    if (pysim_cuda_time(&p, &s, &e, b, a, c, workspace, bytes, nullptr, 1, 3, times) != PYSIM_OK) {
                        printf("{\"error\": \"%s: %s\"}\n", row.name, pysim_cuda_last_error());
                        continue;
                    }
                    const char *kinds[] = {"", " split-k ", " stream-k "};
                    found.push_back({s, std::string(row.name) + kinds[s.decomposition] + (splits == 1 ? "" : std::to_string(s.splits)), quantile({times, times + 3}, 0.4), bytes});
                }
            }
            if (found.empty()) continue;
            std::sort(found.begin(), found.end(), [](const Candidate &x, const Candidate &y) { return x.seconds < y.seconds; });
            if (rows) for (const Candidate &x : found) printf("{\"row\": \"%s\", \"dtype\": \"%s\", \"shape\": [%d, %d, %d], \"seconds\": %.4g, \"tflops\": %.1f}\n", x.text.c_str(), t.name, M, N, K, x.seconds, 2e-12 * M * N * K / x.seconds);
            const float f1 = 1, f0 = 0;
            const double d1 = 1, d0 = 0;
            const int i1 = 1, i0 = 0;
            const void *alpha = &f1, *beta = &f0;
            if (t.code == PYSIM_F64) alpha = &d1, beta = &d0;
            if (t.code == PYSIM_S8) alpha = &i1, beta = &i0;
            cublasLtMatmulDesc_t op = nullptr;
            cublasLtMatrixLayout_t la = nullptr, lb = nullptr, lc = nullptr;
            cublasLtMatmulHeuristicResult_t heuristic = {};
            bool peer = true;
            if (t.code == PYSIM_F8) { /* cublasLt multiplies e4m3 with A transposed only */
                const cublasOperation_t yes = CUBLAS_OP_T, no = CUBLAS_OP_N;

                NEED(cublasLtMatmulDescCreate(&op, t.compute, CUDA_R_32F));
                NEED(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &yes, sizeof yes));
                NEED(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSB, &no, sizeof no));
                NEED(cublasLtMatrixLayoutCreate(&la, t.ab, K, M, K));
                NEED(cublasLtMatrixLayoutCreate(&lb, t.ab, K, N, K));
                NEED(cublasLtMatrixLayoutCreate(&lc, t.c, M, N, M));
                cublasLtMatmulPreference_t preference;
                NEED(cublasLtMatmulPreferenceCreate(&preference));
                NEED(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &space, sizeof space));
                int results = 0;
                peer = cublasLtMatmulAlgoGetHeuristic(lt, op, la, lb, lc, lc, preference, 1, &heuristic, &results) == CUBLAS_STATUS_SUCCESS && results > 0;
                cublasLtMatmulPreferenceDestroy(preference);
            }
            const auto theirs = [&] {
                if (t.code == PYSIM_F8)
                    NEED(cublasLtMatmul(lt, op, alpha, a, la, b, lb, beta, c, lc, c, lc, &heuristic.algo, cublas_space, space, nullptr));
                else
                    NEED(cublasGemmEx(cublas, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N, M, N, K, alpha, a, t.ab, ta ? K : M, b, t.ab, tb ? N : K, beta, c, t.c, M, t.compute, CUBLAS_GEMM_DEFAULT));
            };
            /* times the three fastest again, each interleaved with cuBLAS */
            Candidate best = found[0];
            std::vector<double> ours, cublas_times;
            for (size_t i = 0; i < std::min<size_t>(3, found.size()); i++) {
                const Candidate &x = found[i];
                std::vector<double> mine, its;
                double spent = 0;
                for (int turn = 0; turn < 40 && (turn < 11 || spent < 0.12); turn++) {
                    const double own = seconds_of([&] { NEED(pysim_cuda_run(&p, &x.s, &e, b, a, c, workspace, x.workspace, nullptr)); });
                    const double other = peer ? seconds_of(theirs) : 0;
                    if (turn >= 3) mine.push_back(own), its.push_back(other);
                    spent += own + other;
                }
                if (ours.empty() || quantile(mine, 0.5) < quantile(ours, 0.5)) ours = mine, cublas_times = its, best = x;
            }
            const double own = quantile(ours, 0.5), other = quantile(cublas_times, 0.5);
            printf("{\"dtype\": \"%s\", \"m\": %d, \"n\": %d, \"k\": %d, \"layout\": \"%c%c\", \"kernel\": \"%s\", \"seconds\": %.5g, \"quartiles\": [%.5g, %.5g], \"tflops\": %.2f, \"cublas_seconds\": %.5g, "
                   "\"cublas_quartiles\": [%.5g, %.5g], \"cublas_tflops\": %.2f, \"ratio\": %.4f, \"samples\": %zu}\n",
                   t.name, M, N, K, ta ? 't' : 'n', tb ? 't' : 'n', best.text.c_str(), own, quantile(ours, 0.25), quantile(ours, 0.75), 2e-12 * M * N * K / own,
                   other, quantile(cublas_times, 0.25), quantile(cublas_times, 0.75), peer ? 2e-12 * M * N * K / other : 0., peer ? other / own : 0., ours.size());
            if (op) cublasLtMatmulDescDestroy(op), cublasLtMatrixLayoutDestroy(la), cublasLtMatrixLayoutDestroy(lb), cublasLtMatrixLayoutDestroy(lc);
        }
    }
    return 0;
}
