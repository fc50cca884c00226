/* SPDX-License-Identifier: Apache-2.0
 * Runs every row of gemms.inc and convs.inc repeatedly at real sizes, alone and together with a kernel that keeps shared memory, L2 and the load/store units
 * busy. Races between copies and reads show only in a few launches, and only if blocks fill the SMs.
 *
 * Operands are small integers, different in each k-iteration, so that every sum is exact in the accumulators' type in any order (f16: integers up to
 * 2048). A stage that is read twice or too late changes the sum. Every element of every launch is compared on the device with plain loops in f64,
 * computed once per problem. F(4x4), whose transforms round, may differ by F4_TOLERANCE, but all its launches must give the same bits. Results and
 * workspace start as NaN. A case is a layout, a result type and a decomposition. The rows of a problem run round-robin, one case each, until the
 * problem's share of the time is over; at the next problem each row continues with its next case.
 *
 *   soak [--seconds N] [--family NAME] [--row SUBSTRING] [--problem SUBSTRING] [--seed N] [--first N] [--list]
 *   family: simt, wmma, mma, wgmma, direct, ...; first: each row's first case. Prints a line per family. Exit status 1 if a launch was wrong or
 *   refused or a row never ran, 77 if there is no device. */
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "check.h"

namespace {

enum { REPEATS = 5, LAYOUTS = 4, DECOMPOSITIONS = 7, HOG_BYTES = 64 << 20 };
const double F4_TOLERANCE = 1e-3; /* relative to the root mean square of the results */
const int64_t MOST_WORKSPACE = (int64_t)6 << 30;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/* The disturbing kernel: shared-memory accesses with bank conflicts, and reads of all of `data`, until *stop or for 20 ms. */
__global__ void __launch_bounds__(256, 8) hog(const uint4 *data, unsigned count, const volatile int *stop, unsigned *sink) {
    __shared__ unsigned words[2048];
    unsigned long long begin, time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    for (unsigned i = threadIdx.x; i < 2048; i += blockDim.x) words[i] = i * 33 % 2048;
    __syncthreads();
    unsigned at = threadIdx.x * 32 % 2048, far = blockIdx.x * 977 + threadIdx.x, sum = 0;
    do {
#pragma unroll 1
        for (int i = 0; i < 64; i++) {
            const uint4 v = __ldcg(data + far % count);
#pragma unroll
            for (int j = 0; j < 4; j++) sum += words[(at + j * 64) % 2048]; /* all lanes of a warp use one bank */
            words[(at + 32) % 2048] = sum & 2047;
            sum += v.x ^ v.w, far += 66049, at = (at + 64) % 2048;
        }
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    } while (!*stop && time - begin < 20000000);
    if (sum == 0xffffffffu) *sink = sum; /* never true; keeps the loop from being removed */
}

/* Runs the disturbing kernel on its own stream. If a row's blocks leave no registers for it, the two share only L2, not an SM. */
struct Hog {
    cudaStream_t stream;
    char *data;
    int *stop;
    void make() {
        need(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
        need(cudaMalloc(&data, HOG_BYTES + 256), "memory");
        need(cudaMemset(data, 1, HOG_BYTES + 256), "memset");
        stop = (int *)(data + HOG_BYTES);
    }
    void start(int blocks) {
        need(cudaMemsetAsync(stop, 0, 4, stream), "memset");
        need(pysim::launch(hog, (unsigned)blocks, 256, 0, stream, (const uint4 *)data, (unsigned)HOG_BYTES / 16, (const volatile int *)stop,
                           (unsigned *)stop + 1),
             "the disturbing kernel");
    }
    void end() { need(cudaMemsetAsync(stop, 1, 4, nullptr), "memset"); } /* takes effect after the launches before it */
    void wait() { need(cudaStreamSynchronize(stream), "the disturbing kernel"); }
};

/* x rounded to the type */
__device__ double rounded(double x, int dtype) {
    alignas(8) char held[8];
    set(held, dtype, 0, x);
    return get(held, dtype, 0);
}

__global__ void cast(void *to, int dtype, const double *from, long long rows, long long columns, bool transpose) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < rows * columns; i += (long long)gridDim.x * blockDim.x)
        set(to, dtype, transpose ? i % columns * rows + i / columns : i, from[i]);
}

struct Found {
    unsigned long long wrong, first;
};

/* `before`: the first launch's result, which must be equal bit for bit; or NULL. */
__global__ void differ(const void *got, int dtype, const double *want, long long count, double allowed, const float *before, Found *out) {
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
        const double x = get(got, dtype, i);
        if (fabs(x - rounded(want[i], dtype)) <= allowed && !(before && x != before[i])) continue; /* NaN fails */
        atomicAdd(&out->wrong, 1ull);
        atomicMin(&out->first, (unsigned long long)i);
    }
}

struct Options {
    double seconds = 180;
    std::string family, row, problem;
    unsigned seed = 1;
    int first = 0;
    bool list = false;
} options;

struct Tally {
    long long launches = 0, wrong = 0, rows = 0, fewest = INT64_MAX;
    double seconds = 0;
};
std::map<std::string, Tally> tallies; /* by family */

Hog disturber;
Found *found;
int sms;
Buffer buffer_out, buffer_before, buffer_work, buffer_want;

/* room: the disturbing kernel's blocks fit on an SM together with one of the row's. */
struct Result {
    int dtype;
    long long count;
    double allowed;
    bool same_bits, room;
};

/* REPEATS launches, alone and then with the disturbing kernel. Before each the result is set to NaN, after each it is compared. False: run() refused. */
template <class Run> bool soak(const std::string &text, const std::string &again, const Result &r, int64_t bytes, unsigned number,
                               Tally &tally, Run run) {
    const double start = now();
    const size_t size = (size_t)r.count * bytes_of[r.dtype];
    char *out = (char *)buffer_out.at(size), *work = (char *)buffer_work.at((size_t)bytes),
         *before = r.same_bits ? (char *)buffer_before.at(size) : nullptr;
    for (int busy = 0; busy < 2; busy++) {
        const int blocks[] = {sms / 4, sms / 2, sms, 2 * sms}, chosen = blocks[number % (r.room ? 4 : 2)];
        Found each_found[REPEATS];
        for (Found &f : each_found) f = {0, ~0ull};
        need(cudaMemcpy(found, each_found, sizeof each_found, cudaMemcpyHostToDevice), "memcpy");
        for (int i = 0; i < REPEATS; i++) {
            /* NaN, or an integer that cannot be a result */
            need(cudaMemsetAsync(out, r.dtype == PYSIM_S32 ? 0x80 : 0xff, size, nullptr), "memset");
            if (bytes) need(cudaMemsetAsync(work, 0xff, (size_t)bytes, nullptr), "memset");
            if (busy) disturber.start(chosen);
            const pysim_status status = run(out, bytes ? work : nullptr);
            if (busy) disturber.end();
            if (status != PYSIM_OK) {
                tally.wrong++;
                printf("FAIL %s: %s\n     %s\n", text.c_str(), pysim_cuda_last_error(), again.c_str());
                return false;
            }
            if (before && !busy && !i) need(cudaMemcpyAsync(before, out, size, cudaMemcpyDeviceToDevice, nullptr), "memcpy");
            each(r.count, differ, (const void *)out, r.dtype, (const double *)buffer_want.data, r.count, r.allowed, (const float *)before,
                 found + i);
        }
        need(cudaMemcpy(each_found, found, sizeof each_found, cudaMemcpyDeviceToHost), text.c_str());
        if (busy) disturber.wait();
        for (const Found &f : each_found) {
            tally.launches++;
            if (!f.wrong) continue;
            if (++tally.wrong <= 10)
                printf("FAIL %s, %s: %llu of %lld elements are wrong, the first is %llu\n     %s\n", text.c_str(),
                       busy ? "disturbed" : "alone", f.wrong, r.count, f.first, again.c_str());
        }
    }
    tally.seconds += now() - start;
    return true;
}

std::string again_of(const char *row, const std::string &problem, int number) {
    return "again: soak --seconds 5 --row " + std::string(row) + " --problem " + problem + " --seed " + std::to_string(options.seed) +
           " --first " + std::to_string(number);
}

/* The decomposition `number`, limited by the k-iterations `steps` and by `tiles`; both 0 if unknown. */
void decompose(int number, int64_t tiles, int64_t steps, int32_t &kind, int32_t &splits) {
    const int parts[DECOMPOSITIONS] = {1, 2, 3, 8, sms, sms + sms / 2, 2 * sms};
    kind = number == 0 ? PYSIM_DATA_PARALLEL : number <= 3 ? PYSIM_SPLIT_K : PYSIM_STREAM_K;
    const int64_t most = !steps ? INT32_MAX : kind == PYSIM_SPLIT_K ? steps : tiles * steps;
    splits = (int32_t)std::min((int64_t)parts[number], most);
    if (splits < 2) kind = PYSIM_DATA_PARALLEL, splits = 1;
}

bool wanted(const char *family, const char *row) {
    return (options.family.empty() || options.family == family) && strstr(row, options.row.c_str());
}

/* A problem: its name, its share of the time and the rows that run it. */
struct Work {
    std::string name;
    double weight;
    std::vector<int> rows;
    int kind, index; /* kind 0: product, 1: convolution; index: in the table of its kind */
};

// Products

struct Product {
    int m, n, k, only;
    double weight;
}; /* only: the only dtype, or -1 for all */
const Product products[] = {
    {4096, 768, 16384, PYSIM_F64, 2}, {2048, 1024, 8192, -1, 1},  {256, 384, 65536, -1, 1}, {4224, 4096, 1024, -1, 1},
    {777, 2051, 4099, -1, 1},         {2048, 129, 2048, -1, 0.5}, {256, 256, 32768, -1, 1}, {512, 640, 12288, -1, 1},
    {1536, 1536, 3072, -1, 1},        {32832, 32800, 64, -1, 1},
};

struct Operands {
    Buffer a, b, held[DTYPES][2][2]; /* a, b: in f64; held[dtype][operand][transposed]: in each dtype */
    bool made[DTYPES][2][2];
    const void *of(const Product &p, int dtype, int operand, bool transposed) {
        Buffer &to = held[dtype][operand][transposed];
        const long long rows = operand ? p.k : p.m, columns = operand ? p.n : p.k;
        if (!made[dtype][operand][transposed]) {
            void *const at = to.at((size_t)(rows * columns) * bytes_of[dtype]);
            each(rows * columns, cast, at, dtype, (const double *)(operand ? b : a).data, rows, columns, transposed);
            made[dtype][operand][transposed] = true;
        }
        return to.data;
    }
} operands;

void prepare(const Product &p) {
    const int most = p.k > 8192 ? 1 : 2; /* f16 accumulators stay below 2048, which is more than six standard deviations */
    memset(operands.made, 0, sizeof operands.made);
    each((long long)p.m * p.k, fill, operands.a.at((size_t)p.m * p.k * 8), (int)PYSIM_F64, p.m, p.k, p.k, options.seed, most);
    each((long long)p.k * p.n, fill, operands.b.at((size_t)p.k * p.n * 8), (int)PYSIM_F64, p.k, p.n, p.n, options.seed + 77, most);
    const pysim_cuda_problem problem = pysim::problem_of(pysim_cuda_gemm{p.m, p.n, p.k, p.k, p.n, p.n, 0, 0, PYSIM_F64, PYSIM_F64, nullptr});
    const pysim_cuda_epilogue plain = {1, 0, nullptr, 0, 0, 0, nullptr, 0, nullptr};
    if (pysim_cuda_reference(&problem, &plain, operands.a.data, operands.b.data, buffer_want.at((size_t)p.m * p.n * 8), nullptr) !=
        PYSIM_OK)
        printf("%s\n", pysim_cuda_last_error()), exit(1);
    need(cudaDeviceSynchronize(), "the reference");
}

bool run(const Product &p, const std::string &name, int row, int number, Tally &tally) {
    pysim_cuda_gemm_info info;
    pysim_cuda_gemm_at(row, &info);
    int types[3];
    const int type_count = results(info.dtype, types), layout = number % LAYOUTS;
    const pysim_cuda_gemm g = {p.m,
                               p.n,
                               p.k,
                               layout & 1 ? p.m : p.k,
                               layout >> 1 ? p.k : p.n,
                               p.n,
                               layout & 1,
                               layout >> 1,
                               info.dtype,
                               types[number / LAYOUTS % type_count], nullptr};
    const pysim_cuda_problem problem = pysim::problem_of(g);
    const auto pieces = [](int64_t size, int64_t piece) { return (size + piece - 1) / piece; };
    const unsigned draw = mix(options.seed + (unsigned)number * 7919u + (unsigned)row);
    pysim_cuda_schedule s = {row, 0, 1, (int)(draw & 1), 1 + (int)(draw >> 1) % 8, -1};
    decompose(number % DECOMPOSITIONS, tiles_of(g, info), pieces(p.k, info.block_k), s.decomposition, s.splits);
    const void *a = operands.of(p, info.dtype, 0, g.trans_a), *b = operands.of(p, info.dtype, 1, g.trans_b);
    const pysim_cuda_epilogue plain = {1, 0, nullptr, 0, 0, 0, nullptr, 0, nullptr};
    int64_t bytes = 0;
    if (pysim_cuda_workspace_bytes(&problem, &s, a, b, &bytes) == PYSIM_OK && bytes > MOST_WORKSPACE) {
        s.decomposition = PYSIM_DATA_PARALLEL, s.splits = 1;
        pysim_cuda_workspace_bytes(&problem, &s, a, b, &bytes); /* a refusal shows when it runs */
    }
    pysim_cuda_attributes of = {};
    pysim_cuda_attributes_of(&problem, row, &of);
    char text[320];
    snprintf(text, sizeof text, "%s %s:%c%c to %s, decomposition %d of %d, along_n %d, group %d", info.name, name.c_str(),
             g.trans_a ? 't' : 'n', g.trans_b ? 't' : 'n', name_of[g.c_dtype], s.decomposition, s.splits, s.along_n, s.group);
    return soak(text, again_of(info.name, name, number), {g.c_dtype, (long long)p.m * p.n, 0, false, of.blocks_per_sm > 1}, bytes,
                draw >> 8, tally,
                [&](void *out, void *work) { return pysim_cuda_run(&problem, &s, &plain, a, b, out, work, bytes, nullptr); });
}

// Convolutions

struct Layer {
    int batch, groups, channels, size, filters, kernel, stride;
    double weight;
};
const Layer layers[] = {
    {32, 1, 64, 56, 64, 3, 1, 1},      {64, 1, 256, 14, 256, 3, 1, 1},      {64, 1, 512, 7, 512, 3, 1, 1},
    {32, 1, 64, 56, 256, 1, 1, 0.5},   {32, 1, 3, 224, 64, 7, 2, 0.5},      {32, 1, 128, 28, 128, 3, 2, 0.5},
    {64, 1, 1024, 14, 256, 1, 1, 0.5}, {32, 144, 144, 56, 144, 3, 1, 0.25}, {32, 32, 256, 28, 256, 3, 1, 0.5},
};

struct ConvOperands {
    Buffer in, weights, held[DTYPES][2];
    bool made[DTYPES][2];
    int layout; /* of the result in buffer_want; -1: none yet */
} conv_operands;

pysim_conv shape_of(const Layer &l, int dtype) {
    const int pad = l.kernel / 2;
    return {l.batch,  l.groups, l.channels, l.size, l.size, l.filters, l.kernel, l.kernel, l.stride,
            l.stride, 1,        1,          pad,    pad,    pad,       pad,      dtype};
}

void prepare(const Layer &l, int layout) {
    const long long in = (long long)l.batch * l.channels * l.size * l.size,
                    weights = (long long)l.filters * (l.channels / l.groups) * l.kernel * l.kernel;
    const int edge = outputs(l.size, l.kernel / 2, l.kernel / 2, l.kernel, l.stride, 1);
    conv_operands.layout = layout;
    memset(conv_operands.made, 0, sizeof conv_operands.made);
    each(in, fill, conv_operands.in.at((size_t)in * 8), (int)PYSIM_F64, 1ll, in, in, options.seed, 2);
    each(weights, fill, conv_operands.weights.at((size_t)weights * 8), (int)PYSIM_F64, 1ll, weights, weights, options.seed + 77, 2);
    const pysim_cuda_problem problem = pysim::problem_of(pysim_cuda_conv{shape_of(l, PYSIM_F64), layout, PYSIM_F64});
    const pysim_cuda_epilogue plain = {1, 0, nullptr, 0, 0, 0, nullptr, 0, nullptr};
    void *const want = buffer_want.at((size_t)l.batch * l.filters * edge * edge * 8);
    if (pysim_cuda_reference(&problem, &plain, conv_operands.in.data, conv_operands.weights.data, want, nullptr) != PYSIM_OK)
        printf("%s\n", pysim_cuda_last_error()), exit(1);
    need(cudaDeviceSynchronize(), "the reference");
}

const void *held(const Layer &l, int dtype, int operand) {
    const long long count =
        operand ? (long long)l.filters * (l.channels / l.groups) * l.kernel * l.kernel : (long long)l.batch * l.channels * l.size * l.size;
    Buffer &to = conv_operands.held[dtype][operand];
    if (!conv_operands.made[dtype][operand]) {
        each(count, cast, to.at((size_t)count * bytes_of[dtype]), dtype,
             (const double *)(operand ? conv_operands.weights : conv_operands.in).data, 1ll, count, false);
        conv_operands.made[dtype][operand] = true;
    }
    return to.data;
}

/* The schedule of a case. False if the row refuses the layer with it: k, or the windows, may be too few to be split. */
bool scheduled(const Layer &l, const pysim_cuda_conv_info &info, int row, int layout, int number, pysim_cuda_problem *p,
               pysim_cuda_schedule *s, int64_t *bytes) {
    const unsigned draw = mix(options.seed + (unsigned)number * 7919u + (unsigned)row);
    const int result = info.dtype == PYSIM_F64                                    ? PYSIM_F64
                       : number / DECOMPOSITIONS % 2 && bytes_of[info.dtype] == 2 ? info.dtype
                                                                                  : PYSIM_F32;
    *p = pysim::problem_of(pysim_cuda_conv{shape_of(l, info.dtype), layout, result});
    *s = {row, PYSIM_DATA_PARALLEL, 1, (int)(draw & 1), 1 + (int)(draw >> 1) % 3, -1};
    if (info.makes_product)
        for (int i = 0; i < pysim_cuda_gemm_count(); i++) { /* a different GEMM row each time */
            pysim_cuda_gemm_info gemm;
            s->gemm = (number * 5 + i) % pysim_cuda_gemm_count();
            pysim_cuda_gemm_at(s->gemm, &gemm);
            if (may_make(gemm, info.dtype)) break;
        }
    if (!strcmp(info.form, "staged") && number % 2) s->splits = 1 + (int)(draw >> 4) % 3; /* chunks */
    else if (info.block_k || info.makes_product) decompose(number % DECOMPOSITIONS, 0, 0, s->decomposition, s->splits);
    if (pysim_cuda_workspace_bytes(p, s, nullptr, nullptr, bytes) == PYSIM_OK && *bytes <= MOST_WORKSPACE) return true;
    s->decomposition = PYSIM_DATA_PARALLEL, s->splits = 1;
    return pysim_cuda_workspace_bytes(p, s, nullptr, nullptr, bytes) == PYSIM_OK;
}

bool run(const Layer &l, const std::string &name, int row, int number, Tally &tally) {
    pysim_cuda_conv_info info;
    pysim_cuda_conv_at(row, &info);
    pysim_cuda_problem problem;
    pysim_cuda_schedule s;
    int64_t bytes = 0;
    if (!scheduled(l, info, row, conv_operands.layout, number, &problem, &s, &bytes)) return false;
    const pysim_cuda_conv &c = problem.conv;
    const void *in = held(l, info.dtype, 0), *weights = held(l, info.dtype, 1);
    const int edge = outputs(l.size, l.kernel / 2, l.kernel / 2, l.kernel, l.stride, 1), k = l.channels / l.groups * l.kernel * l.kernel;
    const pysim_cuda_epilogue plain = {1, 0, nullptr, 0, 0, 0, nullptr, 0, nullptr};
    pysim_cuda_attributes of = {};
    pysim_cuda_attributes_of(&problem, row, &of);
    char text[320];
    snprintf(text, sizeof text, "%s %s %s to %s, decomposition %d of %d, along_n %d, group %d, gemm %d", info.name, name.c_str(),
             c.layout ? "nhwc" : "nchw", name_of[c.out_dtype], s.decomposition, s.splits, s.along_n, s.group, s.gemm);
    const bool inexact = info.outputs > 2; /* operands are uniform in -2..2, so the products' root mean square is 2 */
    const Result result = {c.out_dtype, (long long)l.batch * l.filters * edge * edge, inexact ? F4_TOLERANCE * 2 * sqrt((double)k) : 0,
                           inexact, of.blocks_per_sm > 1};
    return soak(text, again_of(info.name, name, number), result, bytes, (unsigned)number, tally,
                [&](void *out, void *work) { return pysim_cuda_run(&problem, &s, &plain, in, weights, out, work, bytes, nullptr); });
}

// All of them

struct Member {
    const char *name, *family;
};
Member member(int kind, int row) {
    if (kind) {
        pysim_cuda_conv_info info;
        pysim_cuda_conv_at(row, &info);
        return {info.name, info.family};
    }
    pysim_cuda_gemm_info info;
    pysim_cuda_gemm_at(row, &info);
    return {info.name, info.family};
}

std::string family_of(int kind, int row) { return std::string(kind ? "convolutions " : "products ") + member(kind, row).family; }

std::vector<Work> all_work() {
    std::vector<Work> all;
    for (const Product &p : products) {
        Work w = {std::to_string(p.m) + "x" + std::to_string(p.n) + "x" + std::to_string(p.k), p.weight, {}, 0, (int)(&p - products)};
        for (int row = 0; row < pysim_cuda_gemm_count(); row++) {
            pysim_cuda_gemm_info info;
            pysim_cuda_gemm_at(row, &info);
            if (wanted(info.family, info.name) && (p.only < 0 || p.only == info.dtype)) w.rows.push_back(row);
        }
        all.push_back(w);
    }
    for (const Layer &l : layers) {
        char name[96];
        snprintf(name, sizeof name, "mb%dg%dic%dih%doc%dkh%dsh%d", l.batch, l.groups, l.channels, l.size, l.filters, l.kernel, l.stride);
        Work w = {name, l.weight, {}, 1, (int)(&l - layers)};
        for (int row = 0; row < pysim_cuda_conv_count(); row++) {
            pysim_cuda_conv_info info;
            pysim_cuda_conv_at(row, &info);
            int taken = 0;
            for (int layout = 0; layout < 2; layout++) {
                pysim_cuda_problem problem;
                pysim_cuda_schedule s;
                int64_t bytes;
                taken += scheduled(l, info, row, layout, 0, &problem, &s, &bytes);
            }
            if (wanted(info.family, info.name) && taken) w.rows.push_back(row);
        }
        all.push_back(w);
    }
    std::vector<Work> some;
    for (const Work &w : all)
        if (!w.rows.empty() && strstr(w.name.c_str(), options.problem.c_str())) some.push_back(w);
    return some;
}

/* Runs the rows of a problem round-robin until `until`, or until all cases are done; a row stops after three times its share of the time. */
void soak_problem(const Work &w, double until, std::map<std::pair<int, int>, int> &cases) {
    const double start = now();
    for (int layout = 0; layout < 1 + w.kind; layout++) { /* the expected result of a convolution has one layout */
        const double end = w.kind ? start + (until - start) * (layout + 1) / 2 : until, share = 3 * (end - now()) / (double)w.rows.size();
        if (w.kind) prepare(layers[w.index], layout);
        else prepare(products[w.index]);
        std::vector<double> spent(w.rows.size(), 0);
        for (int turn = 0, ran = 1; ran && turn < 2 * LAYOUTS * DECOMPOSITIONS; turn++) {
            ran = 0;
            for (size_t i = 0; i < w.rows.size(); i++) {
                if (turn && (now() > end || spent[i] > share)) continue;
                int &number = cases.emplace(std::make_pair(w.kind, w.rows[i]), options.first).first->second;
                Tally &tally = tallies[family_of(w.kind, w.rows[i])];
                const double begin = now();
                const bool done = w.kind ? run(layers[w.index], w.name, w.rows[i], number, tally)
                                         : run(products[w.index], w.name, w.rows[i], number, tally);
                spent[i] += done ? now() - begin : INFINITY; /* it refuses this layout, or fails */
                if (done) number++, ran++;
            }
        }
    }
}
}

int main(int argc, char **argv) {
    setbuf(stdout, nullptr);
    for (int i = 1; i < argc; i++) {
        const std::string name = argv[i];
        const bool more = i + 1 < argc;
        if (name == "--list") options.list = true;
        else if (name == "--seconds" && more && atof(argv[i + 1]) > 0) options.seconds = atof(argv[++i]);
        else if (name == "--family" && more) options.family = argv[++i];
        else if (name == "--row" && more) options.row = argv[++i];
        else if (name == "--problem" && more) options.problem = argv[++i];
        else if (name == "--seed" && more) options.seed = (unsigned)atoi(argv[++i]);
        else if (name == "--first" && more) options.first = atoi(argv[++i]);
        else
            return printf(
                       "usage: soak [--seconds N] [--family NAME] [--row SUBSTRING] [--problem SUBSTRING] [--seed N] [--first N] [--list]\n"),
                   2;
    }
    const std::vector<Work> all = all_work();
    if (options.list) {
        for (const Work &w : all)
            for (int row : w.rows) printf("%s %s %s\n", w.name.c_str(), family_of(w.kind, row).c_str(), member(w.kind, row).name);
        return 0;
    }
    if (!found_device()) return 77;
    need(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "the device");
    need(cudaMalloc(&found, REPEATS * sizeof *found), "memory");
    disturber.make();

    std::map<std::pair<int, int>, int> cases; /* each row's next case */
    for (const Work &w : all)
        for (int row : w.rows) cases.emplace(std::make_pair(w.kind, row), options.first);
    const double start = now();
    double weight = 0;
    for (const Work &w : all) weight += w.weight;
    for (const Work &w : all) { /* time that one leaves goes to the others */
        const double begin = now();
        soak_problem(w, begin + (start + options.seconds - begin) * w.weight / weight, cases);
        weight -= w.weight;
        printf("%-40s %4zu rows %7.1f s\n", w.name.c_str(), w.rows.size(), now() - begin);
    }
    for (const auto &row : cases) {
        Tally &tally = tallies[family_of(row.first.first, row.first.second)];
        tally.rows++, tally.fewest = std::min(tally.fewest, (long long)row.second - options.first);
    }
    Tally sum;
    bool idle = cases.empty();
    for (const auto &entry : tallies) {
        const Tally &t = entry.second;
        printf("%-24s %7lld launches %5lld wrong %7.1f s; %lld rows, at least %lld cases each\n", entry.first.c_str(), t.launches, t.wrong,
               t.seconds, t.rows, t.fewest);
        sum.launches += t.launches, sum.wrong += t.wrong, idle |= t.fewest == 0;
    }
    printf("%lld launches, %lld wrong, %.1f s\n", sum.launches, sum.wrong, now() - start);
    return sum.wrong || idle;
}
