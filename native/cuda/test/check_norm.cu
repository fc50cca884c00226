/* SPDX-License-Identifier: Apache-2.0
 * Compares norms between products (norm/norm.cu) with their definition in f64, element by element. Cases: concatenations of up to 64 parts with
 * different numbers of channels, one of them used twice; parts that are not whole vectors or are misaligned; rows of one to 8192 channels; every pair
 * of types; infinities and NaN. Guard patterns around the results must survive, and parts end where their allocation does. Norms of groups
 * (norm/group.cu): one pixel to as many as fit, one channel a group to all, means that are large beside the deviation.
 *
 *   check_norm [--cases N]    N: cases per kind of norm and pair of types (default 300). Exit status 1 if a case failed, 77 if there is no device. */
#include "check.h"

namespace {

enum { HEAD = 1024 };
constexpr double BOUND = 0x1p-21;
struct Parameters {
    const float *center, *scale, *shift;
};
struct Parts {
    const void *at[PYSIM_CUDA_PARTS];
};

__device__ double of(const float *values, int64_t c, double otherwise) { return values ? values[c] : otherwise; }

__device__ double element(const pysim_cuda_norm &n, const Parts &parts, int64_t row, int64_t c) {
    int part = 0;
    for (; c >= n.channels[part]; part++) c -= n.channels[part];
    return get(parts.at[part], n.dtype, row * n.channels[part] + c);
}

/* One thread per row. `size`: the magnitude to which rounding errors are relative. */
__global__ void define(pysim_cuda_norm n, Parts parts, Parameters p, int64_t channels, void *want, double *size) {
    for (int64_t row = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; row < n.rows; row += (int64_t)gridDim.x * blockDim.x) {
        double mean = 0, squares = 0, largest = 0, factor = 1;
        if (n.kind == PYSIM_NORM_ROWS) {
            for (int64_t c = 0; c < channels; c++) mean += element(n, parts, row, c) / (double)channels;
            for (int64_t c = 0; c < channels; c++) {
                const double x = element(n, parts, row, c);
                squares += (x - mean) * (x - mean) / (double)channels, largest = fmax(largest, fabs(x));
            }
            factor = 1 / sqrt(squares + n.epsilon);
        }
        for (int64_t c = 0; c < channels; c++) {
            const double x = element(n, parts, row, c), center = n.kind == PYSIM_NORM_ROWS ? mean : of(p.center, c, 0),
                         scale = of(p.scale, (n.image_rows ? row / n.image_rows * channels : 0) + c, 1) * factor;
            const double y = scale * (x - center) + of(p.shift, c, 0);
            set(want, n.out_dtype, row * channels + c, n.relu && y < 0 ? 0 : y);
            const double spacing = n.out_dtype == PYSIM_F16 ? 0x1p-24 : 0; /* of subnormal f16 */
            size[row * channels + c] = fabs(scale) * (largest + fabs(x) + fabs(center)) + fabs(of(p.shift, c, 0)) + spacing / BOUND;
        }
    }
}

Buffer buffer_parts[PYSIM_CUDA_PARTS], buffer_result, buffer_want, buffer_size, buffer_parameters[3];
long long cases, failures;

struct Draw {
    unsigned state;
    int operator()(int n) { return (int)(mix(state += 0x9e3779b9u) % (unsigned)n); }
};

/* Parts with random channels; the last part may be the first one again. */
void make_parts(pysim_cuda_norm &n, Parts &parts, Draw &draw, unsigned seed) {
    const int vector = draw(3) ? 8 : 1, element = bytes_of[n.dtype];
    const bool rows = n.kind == PYSIM_NORM_ROWS;
    n.parts = rows ? 1 : draw(8) ? 1 + draw(6) : PYSIM_CUDA_PARTS;
    n.rows = 1 + draw(draw(4) ? 40 : 3000 / n.parts);
    for (int i = 0; i < n.parts; i++) {
        const bool again = i && i == n.parts - 1 && !draw(3);
        n.channels[i] = again ? n.channels[0] : vector * (1 + draw(rows && !draw(4) ? 8192 / vector : n.parts > 6 ? 8 : 60));
        if (again) {
            parts.at[i] = parts.at[0];
            continue;
        }
        const int64_t count = n.rows * n.channels[i];
        char *const data = buffer_parts[i].place((size_t)(count * element), draw(6) ? 0 : element, true);
        each(count, fill, (void *)data, n.dtype, 1ll, (long long)count, (long long)count, seed + (unsigned)i, 0);
        if (!draw(8))
            each(1, poison, (void *)data, n.dtype, (long long)draw((int)count), 1ll, 1ll, draw(2) ? (double)NAN : (double)INFINITY);
        parts.at[i] = data;
    }
}

void run(int kind, int dtype, int out_dtype, unsigned seed) {
    Draw draw = {seed};
    pysim_cuda_norm n = {};
    Parts parts = {};
    n.kind = kind, n.dtype = dtype, n.out_dtype = out_dtype, n.relu = draw(2), n.epsilon = draw(3) ? 1e-5 : 0;
    make_parts(n, parts, draw, seed);
    long long channels = 0;
    for (int i = 0; i < n.parts; i++) channels += n.channels[i];
    const float *given[3] = {};
    for (int i = kind == PYSIM_NORM_ROWS; i < 3; i++)
        if (draw(4)) {
            if (i == 1 && kind == PYSIM_NORM_CHANNELS && !draw(3)) n.image_rows = n.rows % 4 ? n.rows : n.rows / 4;
            const long long values = channels * (i == 1 && n.image_rows ? n.rows / n.image_rows : 1);
            given[i] = (const float *)buffer_parameters[i].place((size_t)values * 4, draw(8) ? 0 : 4, true);
            each(values, fill, (void *)given[i], PYSIM_F32, 1ll, values, values, seed + 100 + (unsigned)i, 0);
        }
    n.center = given[0], n.scale = given[1], n.shift = given[2];
    const long long count = n.rows * channels;
    const size_t offset = draw(6) ? 0 : (size_t)bytes_of[out_dtype], head = HEAD + offset,
                 total = (size_t)count * bytes_of[out_dtype] / 256 * 256 + 256 + 2 * HEAD;
    char *const block = (char *)buffer_result.at(total), *const want = (char *)buffer_want.at(total) + head;
    double *const size = (double *)buffer_size.at((size_t)count * 8);
    need(cudaMemset(block, 0xff, total), "memset");
    each(n.rows * 16, define, n, parts, Parameters{given[0], given[1], given[2]}, (int64_t)channels, (void *)want, size);
    cases++;
    if (pysim_cuda_normalize(&n, parts.at, block + head, nullptr) != PYSIM_OK) printf("%s\n", pysim_cuda_last_error()), failures++;
    const Verdict v = verdict_of(block, total, head, block + head, want, size, out_dtype, n.rows, channels, channels, BOUND, "normalize");
    if ((v.wrong || v.gaps) && ++failures <= 40)
        printf(
            "FAIL %s %s->%s %lld rows of %lld channels, %d parts, the first of %lld, offset %zu, relu %d: %llu wrong, the first at %lld; %llu bytes outside\n",
            kind == PYSIM_NORM_ROWS ? "by rows" : "by channels", name_of[dtype], name_of[out_dtype], (long long)n.rows, channels, n.parts,
            (long long)n.channels[0], offset, n.relu, v.wrong, v.first, v.gaps);
}

/* One thread per group of an image. */
__global__ void define_groups(pysim_cuda_group_norm n, const void *x, void *want, double *size) {
    const int64_t of = n.channels / n.groups, all = n.images * n.groups;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < all; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t first = i / n.groups * n.pixels * n.channels + i % n.groups * of;
        double mean = 0, squares = 0, largest = 0;
        const auto each = [&](auto use) {
            for (int64_t p = 0; p < n.pixels; p++)
                for (int64_t c = 0; c < of; c++) use(first + p * n.channels + c, i % n.groups * of + c);
        };
        each([&](int64_t at, int64_t) { mean += get(x, n.dtype, at) / (double)(of * n.pixels); });
        each([&](int64_t at, int64_t) {
            const double v = get(x, n.dtype, at);
            squares += (v - mean) * (v - mean) / (double)(of * n.pixels), largest = fmax(largest, fabs(v));
        });
        const double factor = 1 / sqrt(squares + n.epsilon), spacing = n.dtype == PYSIM_F16 ? 0x1p-24 : 0;
        each([&](int64_t at, int64_t c) {
            const double v = get(x, n.dtype, at), scale = n.scale ? get(n.scale, n.parameters, c) * factor : factor,
                         shift = n.shift ? get(n.shift, n.parameters, c) : 0, added = n.residual ? get(n.residual, n.dtype, at) : 0,
                         y = scale * (v - mean) + shift + added;
            set(want, n.dtype, at, n.activation && y < 0 ? 0 : y);
            size[at] = fabs(scale) * (largest + fabs(v) + fabs(mean)) + fabs(shift) + fabs(added) + spacing / BOUND;
        });
    }
}

void run_groups(int dtype, unsigned seed) {
    Draw draw = {seed};
    pysim_cuda_group_norm n = {};
    const int vector = dtype == PYSIM_F32 ? 4 : 8, element = bytes_of[dtype];
    n.dtype = dtype, n.activation = draw(2), n.epsilon = draw(3) ? 1e-5 : 0.1, n.parameters = draw(2) ? PYSIM_F32 : dtype;
    n.channels = vector * (1 + draw(draw(4) ? 12 : 70)), n.images = 1 + draw(4);
    do n.groups = draw(3) ? 1 + draw((int)n.channels) : draw(2) ? 1 : n.channels;
    while (n.channels % n.groups);
    n.pixels = 1 + draw(draw(3) ? 80 : 3000);
    if (pysim_cuda_normalizes_groups(&n) != PYSIM_OK) n.pixels = 1 + draw(30);
    const long long pixels = n.images * n.pixels, count = pixels * n.channels;
    char *const x = buffer_parts[0].place((size_t)(count * element), 0, true);
    each(count, fill, (void *)x, dtype, 1ll, count, count, seed, 0);
    if (!draw(6)) each(1, poison, (void *)x, dtype, (long long)draw((int)count), 1ll, 1ll, draw(2) ? (double)NAN : (double)INFINITY);
    if (draw(2)) {
        n.residual = buffer_parts[1].place((size_t)(count * element), 0, true);
        each(count, fill, (void *)n.residual, dtype, 1ll, count, count, seed + 1, 0);
    }
    const void **const given[2] = {&n.scale, &n.shift};
    for (int i = 0; i < 2; i++)
        if (draw(4)) {
            *given[i] = buffer_parameters[i].place((size_t)n.channels * bytes_of[n.parameters], 0, true);
            each(n.channels, fill, (void *)*given[i], n.parameters, 1ll, n.channels, n.channels, seed + 100 + (unsigned)i, 0);
        }
    const size_t total = (size_t)count * element / 256 * 256 + 256 + 2 * HEAD;
    char *const block = (char *)buffer_result.at(total), *const want = (char *)buffer_want.at(total) + HEAD;
    double *const size = (double *)buffer_size.at((size_t)count * 8);
    need(cudaMemset(block, 0xff, total), "memset");
    each(n.images * n.groups * 16, define_groups, n, (const void *)x, (void *)want, size);
    cases++;
    if (pysim_cuda_normalize_groups(&n, x, block + HEAD, nullptr) != PYSIM_OK) printf("%s\n", pysim_cuda_last_error()), failures++;
    const Verdict v =
        verdict_of(block, total, HEAD, block + HEAD, want, size, dtype, pixels, n.channels, n.channels, BOUND, "normalize_groups");
    if ((v.wrong || v.gaps) && ++failures <= 40)
        printf(
            "FAIL groups %s %lld images of %lld pixels of %lld channels, %lld groups, residual %d: %llu wrong, the first at %lld; %llu bytes outside\n",
            name_of[dtype], (long long)n.images, (long long)n.pixels, (long long)n.channels, (long long)n.groups, n.residual != nullptr,
            v.wrong, v.first, v.gaps);
}
}

int main(int argc, char **argv) {
    setbuf(stdout, nullptr);
    int wanted = 300;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--cases") && i + 1 < argc && atoi(argv[i + 1]) > 0) wanted = atoi(argv[++i]);
        else return printf("usage: check_norm [--cases N]\n"), 2;
    }
    if (!found_device()) return 77;
    const int types[] = {PYSIM_F32, PYSIM_F16, PYSIM_BF16};
    for (const int kind : {PYSIM_NORM_CHANNELS, PYSIM_NORM_ROWS})
        for (const int dtype : types)
            for (const int out_dtype : types) {
                if (dtype != out_dtype && dtype != PYSIM_F32 && out_dtype != PYSIM_F32) continue;
                const long long before = failures;
                for (int i = 0; i < wanted; i++) run(kind, dtype, out_dtype, mix((unsigned)(i * 64 + kind * 32 + dtype * 8 + out_dtype)));
                printf("%s %s %s->%s\n", failures == before ? "ok  " : "FAIL", kind == PYSIM_NORM_ROWS ? "by rows" : "by channels",
                       name_of[dtype], name_of[out_dtype]);
            }
    for (const int dtype : types) {
        const long long before = failures;
        for (int i = 0; i < wanted; i++) run_groups(dtype, mix((unsigned)(i * 8 + dtype)));
        printf("%s groups %s\n", failures == before ? "ok  " : "FAIL", name_of[dtype]);
    }
    printf("%lld cases, %lld failures\n", cases, failures);
    return failures ? 1 : 0;
}
