/* SPDX-License-Identifier: Apache-2.0
 * Convolutions: check the arguments, lay out the workspace, launch. The contract with the families is in conv/conv.h. */
#include "conv/conv.h"

#include <algorithm>

#include "abi/operation.h"
#include "abi/registry.h"
#include "core/decomposition.cuh"

namespace pysim {
namespace {

const Registry<ConvRow> registry = {{
#define PYSIM_CUDA_GEMM(...)
#define PYSIM_CUDA_CONV(family, ...) conv_##family::units,
#include "families.inc"
#undef PYSIM_CUDA_CONV
#undef PYSIM_CUDA_GEMM
}};

int64_t outputs_of(int64_t size, int64_t before, int64_t after, int64_t kernel, int64_t stride, int64_t dilation) {
    return (size + before + after - dilation * (kernel - 1) - 1) / stride + 1;
}

/* Slices, rows and columns of outputs. */
struct Outputs {
    int64_t d, h, w;
    explicit Outputs(const pysim_conv &s)
        : d(outputs_of(s.depth, s.pad_front, s.pad_back, s.kernel_d, s.stride_d, s.dilation_d)),
          h(outputs_of(s.height, s.pad_top, s.pad_bottom, s.kernel_h, s.stride_h, s.dilation_h)),
          w(outputs_of(s.width, s.pad_left, s.pad_right, s.kernel_w, s.stride_w, s.dilation_w)) {}
};

/* An image, whose depth is all 0, as a volume of one slice. */
pysim_conv with_depth(pysim_conv s) {
    if (!(s.depth | s.kernel_d | s.stride_d | s.dilation_d | s.pad_front | s.pad_back))
        s.depth = s.kernel_d = s.stride_d = s.dilation_d = 1;
    return s;
}
bool is_volume(const pysim_conv &s) { return s.depth != 1 || s.kernel_d != 1 || s.pad_front || s.pad_back; }

/* A volume whose windows join no rows and no columns, as an image whose rows are slices and whose columns are all elements of one. */
pysim_conv folded(const pysim_conv &from) {
    pysim_conv s = with_depth(from);
    const bool plain = s.kernel_h == 1 && s.kernel_w == 1 && s.stride_h == 1 && s.stride_w == 1;
    if (!is_volume(s) || !plain || s.pad_top || s.pad_left || s.pad_bottom || s.pad_right || s.height * s.width > limit::CONV_SIZE)
        return s;
    s.width *= s.height, s.height = s.depth, s.kernel_h = s.kernel_d, s.stride_h = s.stride_d, s.dilation_h = s.dilation_d;
    s.pad_top = s.pad_front, s.pad_bottom = s.pad_back;
    s.depth = s.kernel_d = s.stride_d = s.dilation_d = s.dilation_w = 1, s.pad_front = s.pad_back = 0;
    return s;
}

struct Tensor {
    const char *name;
    double elements; /* in double: the products may overflow int64 */
};
/* A tensor of more elements than kernels take; name NULL: there is none. */
Tensor too_large(const pysim_conv &s) {
    const Outputs out(s);
    const double windows = (double)out.d * (double)out.h * (double)out.w;
    const Tensor tensors[] = {
        {"input", (double)s.batch * (double)s.channels * (double)s.depth * (double)s.height * (double)s.width},
        {"filters", (double)s.filters * (double)(s.channels / s.groups) * (double)s.kernel_d * (double)s.kernel_h * (double)s.kernel_w},
        {"output", (double)s.batch * (double)s.filters * windows},
        {"windows of all groups", (double)s.groups * ((double)s.batch * windows + limit::SPARE_WINDOWS)}};
    for (const Tensor &tensor : tensors)
        if (tensor.elements > (double)limit::CONV_TENSOR) return tensor;
    return {};
}

/* Larger tensors are computed in parts, whose operands lie one after another: of some images each, or of one image under NCHW of some groups, or of one
 * group of some filters. */
struct Parts {
    int64_t images, groups, filters; /* of a part; of a group */
    int64_t image_parts, group_parts, filter_parts;

    int64_t count() const { return image_parts * group_parts * filter_parts; }
    /* The part with these numbers. */
    pysim_conv of(const pysim_conv &from, int64_t image, int64_t group, int64_t filter) const {
        pysim_conv s = from;
        s.batch = std::min(images, from.batch - image * images), s.groups = std::min(groups, from.groups - group * groups);
        s.channels = from.channels / from.groups * s.groups;
        s.filters = std::min(filters, from.filters / from.groups - filter * filters) * s.groups;
        return s;
    }
};
/* As few parts as fit, of equal sizes but the last. */
Parts parts_of(const pysim_conv &s, int layout) {
    Parts p = {s.batch, s.groups, s.filters / s.groups, 1, 1, 1};
    if (!too_large(s).name) return p;
    const auto over = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    const auto cut = [&](int64_t Parts::*size, int64_t Parts::*parts) {
        const int64_t all = p.*size;
        int64_t low = 1, high = all; /* the most that fit, by bisection; else 1 */
        while (low < high) {
            p.*size = low + (high - low + 1) / 2;
            if (too_large(p.of(s, 0, 0, 0)).name) high = p.*size - 1;
            else low = p.*size;
        }
        p.*size = over(all, over(all, low)), p.*parts = over(all, p.*size);
        return too_large(p.of(s, 0, 0, 0)).name != nullptr;
    };
    if (cut(&Parts::images, &Parts::image_parts) && layout == PYSIM_NCHW && cut(&Parts::groups, &Parts::group_parts))
        cut(&Parts::filters, &Parts::filter_parts);
    return p;
}

/* The first part, which is the largest. */
pysim_cuda_conv first_part(const pysim_cuda_conv *c) {
    pysim_cuda_conv part = *c;
    const pysim_conv s = with_depth(c->shape);
    part.shape = parts_of(s, c->layout).of(s, 0, 0, 0);
    return part;
}

pysim_status check_conv(const pysim_cuda_conv *c) {
    const pysim_conv s = with_depth(c->shape);
    const struct {
        const char *name;
        int64_t value, least;
    } sizes[] = {
        {"batch", s.batch, 1},         {"groups", s.groups, 1},     {"channels", s.channels, 1},     {"height", s.height, 1},
        {"width", s.width, 1},         {"filters", s.filters, 1},   {"kernel_h", s.kernel_h, 1},     {"kernel_w", s.kernel_w, 1},
        {"stride_h", s.stride_h, 1},   {"stride_w", s.stride_w, 1}, {"dilation_h", s.dilation_h, 1}, {"dilation_w", s.dilation_w, 1},
        {"pad_top", s.pad_top, 0},     {"pad_left", s.pad_left, 0}, {"pad_bottom", s.pad_bottom, 0}, {"pad_right", s.pad_right, 0},
        {"depth", s.depth, 1},         {"kernel_d", s.kernel_d, 1}, {"stride_d", s.stride_d, 1},     {"dilation_d", s.dilation_d, 1},
        {"pad_front", s.pad_front, 0}, {"pad_back", s.pad_back, 0}};
    for (const auto &size : sizes)
        if (size.value < size.least || size.value > limit::CONV_SIZE)
            return fail(PYSIM_BAD_ARGUMENT, "%s is %lld; it lies in %lld..%lld", size.name, (long long)size.value, (long long)size.least,
                        (long long)limit::CONV_SIZE);
    if (s.channels % s.groups || s.filters % s.groups)
        return fail(PYSIM_BAD_ARGUMENT, "%lld channels and %lld filters do not part into %lld groups", (long long)s.channels,
                    (long long)s.filters, (long long)s.groups);
    const int64_t high = s.dilation_h * (s.kernel_h - 1) + 1, wide = s.dilation_w * (s.kernel_w - 1) + 1;
    if (high > s.height + s.pad_top + s.pad_bottom || wide > s.width + s.pad_left + s.pad_right)
        return fail(PYSIM_BAD_ARGUMENT, "the kernel spans %lldx%lld, more than the padded input of %lldx%lld", (long long)high,
                    (long long)wide, (long long)(s.height + s.pad_top + s.pad_bottom), (long long)(s.width + s.pad_left + s.pad_right));
    const int64_t deep = s.dilation_d * (s.kernel_d - 1) + 1;
    if (deep > s.depth + s.pad_front + s.pad_back)
        return fail(PYSIM_BAD_ARGUMENT, "the kernel spans %lld slices, more than the %lld of the padded input", (long long)deep,
                    (long long)(s.depth + s.pad_front + s.pad_back));
    if ((unsigned)c->layout > 1) return fail(PYSIM_BAD_ARGUMENT, "layout is %d; expected 0 (NCHW) or 1 (NHWC)", c->layout);
    const Tensor tensor = too_large(first_part(c).shape);
    if (tensor.name)
        return fail(PYSIM_UNSUPPORTED, "the %s would have %.0f elements in one part; the CUDA kernels take up to %.0f", tensor.name,
                    tensor.elements, (double)limit::CONV_TENSOR);
    return check_dtypes(s.dtype, c->out_dtype);
}

pysim_status check_schedule(const pysim_cuda_conv *c, const pysim_cuda_schedule *s, const ConvRow **row) {
    if (!s) return fail(PYSIM_BAD_ARGUMENT, "schedule is NULL");
    const pysim_status found = registry.find(s->kernel, c->shape.dtype, row);
    if (found != PYSIM_OK) return found;
    const pysim_cuda_conv_info &info = (*row)->info;
    if (info.makes_product ? s->gemm < 0 || s->gemm >= pysim_cuda_gemm_count() : s->gemm != -1)
        return fail(PYSIM_BAD_ARGUMENT, "gemm is %d; for %s it is %s", s->gemm, info.name, info.makes_product ? "a row of gemm/" : "-1");
    const bool chunked = (*row)->chunked && s->decomposition == PYSIM_DATA_PARALLEL && s->splits >= 1;
    const pysim_status status = check_decomposition(s->decomposition, chunked ? 1 : s->splits, s->along_n, s->group);
    if (status != PYSIM_OK) return status;
    if (!info.makes_product && !info.block_k && s->decomposition != PYSIM_DATA_PARALLEL)
        return fail(PYSIM_UNSUPPORTED, "kernel %s is data parallel only: decomposition is 0 and splits 1", info.name);
    return PYSIM_OK;
}

Conv conv_of(const pysim_cuda_conv *c, const pysim_cuda_schedule *s, const ConvRow *row) {
    const pysim_conv from = folded(c->shape);
    const Outputs out(from);
    Conv to = {};
    to.batch = (int)from.batch, to.groups = (int)from.groups;
    to.channels = (int)(from.channels / from.groups), to.filters = (int)(from.filters / from.groups);
    to.height = (int)from.height, to.width = (int)from.width;
    to.depth = (int)from.depth, to.kernel_d = (int)from.kernel_d, to.stride_d = (int)from.stride_d, to.dilation_d = (int)from.dilation_d;
    to.pad_front = (int)from.pad_front, to.pad_back = (int)from.pad_back, to.volumes = is_volume(from);
    to.slice_rows = (int)out.h, to.out_h = (int)(out.d * out.h), to.out_w = (int)out.w;
    to.kernel_h = (int)from.kernel_h, to.kernel_w = (int)from.kernel_w, to.stride_h = (int)from.stride_h, to.stride_w = (int)from.stride_w;
    to.dilation_h = (int)from.dilation_h, to.dilation_w = (int)from.dilation_w;
    to.pad_top = (int)from.pad_top, to.pad_left = (int)from.pad_left, to.pad_bottom = (int)from.pad_bottom,
    to.pad_right = (int)from.pad_right;
    to.nhwc = c->layout == PYSIM_NHWC, to.dtype = from.dtype;
    const int outputs = row ? row->info.outputs : 1, block = row && row->info.block_windows ? row->info.block_windows : 1;
    const int high = ceil_div(to.out_h, outputs), wide = ceil_div(to.out_w, outputs);
    to.windows = to.batch * high * wide;
    to.k = outputs > 1 ? to.channels : to.channels * to.taps();
    to.group_tiles = ceil_div(to.windows, block);
    to.per_image = Divisor((unsigned)(high * wide)), to.per_row = Divisor((unsigned)wide);
    to.per_channel = Divisor((unsigned)(to.nhwc ? to.kernel_w * to.channels : to.taps()));
    to.per_kernel_row = Divisor((unsigned)(to.nhwc ? to.channels : to.kernel_w));
    Problem &p = to.product;
    const int all = to.groups * to.group_tiles * block;
    p.m = to.nhwc ? all : to.filters, p.n = to.nhwc ? to.filters : all, p.k = to.k;
    p.ldc = to.nhwc ? from.filters : to.out_h * to.out_w;
    p.c_dtype = c->out_dtype;
    p.alpha = 1, p.kind = PYSIM_DATA_PARALLEL, p.splits = 1, p.group = 1;
    to.gemm = -1;
    to.tile_m = row ? to.nhwc ? row->info.block_windows : row->info.block_filters : 0;
    to.tile_n = row ? to.nhwc ? row->info.block_filters : row->info.block_windows : 0;
    to.cluster = 1;
    if (row && row->tile) row->tile(to);
    if (s) p.kind = s->decomposition, p.splits = s->splits, p.along_n = s->along_n, p.group = s->group, to.gemm = s->gemm;
    return to;
}

/* With the prologue of `e`. */
pysim_status conv_of(const pysim_cuda_conv *c, const pysim_cuda_schedule *s, const ConvRow *row, const pysim_cuda_epilogue *e, Conv *to) {
    pysim_status status = check_epilogue(c->out_dtype, e);
    if (status == PYSIM_OK) status = check_prologue(e->prologue);
    if (status != PYSIM_OK) return status;
    *to = conv_of(c, s, row);
    const pysim_cuda_prologue *p = e->prologue;
    if (p) to->prologue = {(const float *)p->scale, (const float *)p->shift, (short)p->by_image, (short)p->relu};
    if (to->prologue.any() && dtypes[c->shape.dtype].bytes != 4)
        return fail(PYSIM_UNSUPPORTED, "a prologue is of f32, not %s", dtypes[c->shape.dtype].name);
    return PYSIM_OK;
}

struct Workspace {
    int64_t own, flags, partials, total;
};

pysim_status workspace_of(const Conv &c, const ConvRow &row, Workspace *w) {
    *w = {};
    const char *reason = c.volumes && !row.volumes                      ? "it computes images, and these are volumes (id, kd)"
                         : c.prologue.any() && !row.info.takes_prologue ? "it takes no prologue"
                         : row.refuses                                  ? row.refuses(c)
                                                                        : nullptr;
    if (reason) return fail(PYSIM_UNSUPPORTED, "kernel %s: %s", row.info.name, reason);
    pysim_status status = row.own_bytes ? row.own_bytes(c, &w->own) : PYSIM_OK;
    if (status != PYSIM_OK) return status;
    w->own = round_up(w->own, ALIGN);
    if (row.info.block_k && !row.info.makes_product) {
        const Grid grid(c.product, c.tile_m, c.tile_n, row.info.block_k);
        const int64_t tiles = (int64_t)grid.tiles_m * grid.tiles_n;
        if (tiles > limit::TILES || (c.product.kind == PYSIM_SPLIT_K && tiles * c.product.splits > limit::TILES))
            return fail(PYSIM_UNSUPPORTED, "kernel %s would need %lld tiles; it runs at most %lld", row.info.name, (long long)tiles,
                        (long long)limit::TILES);
        if (c.product.kind == PYSIM_SPLIT_K && c.product.splits > grid.steps)
            return fail(PYSIM_BAD_ARGUMENT, "splits is %d, but k has only %d steps of %d", c.product.splits, grid.steps, row.info.block_k);
        if (c.product.kind == PYSIM_STREAM_K && c.product.splits > tiles * grid.steps)
            return fail(PYSIM_BAD_ARGUMENT, "splits is %d blocks, but there are only %lld steps in all", c.product.splits,
                        (long long)(tiles * grid.steps));
        const int64_t slots = c.product.kind == PYSIM_SPLIT_K && c.product.splits <= row.reduces_in_cluster ? 0 : grid.slots(c.product);
        w->flags = slots ? round_up(tiles * c.cluster * (int64_t)sizeof(unsigned), ALIGN) : 0;
        w->partials = slots * c.tile_m * c.tile_n * row.info.outputs * row.info.outputs * sum_bytes(c.dtype);
    }
    w->total = w->own + w->flags + w->partials;
    if (w->total) w->total += ALIGN;
    return PYSIM_OK;
}

pysim_status check_operands(const pysim_cuda_conv *c, const Conv &v, const pysim_cuda_epilogue *e, const void *input, const void *filters,
                            const void *output, const void *workspace, int64_t workspace_bytes) {
    const pysim_conv &s = c->shape;
    const int element = dtypes[s.dtype].bytes, result = dtypes[c->out_dtype].bytes;
    return check_memory({
        {"output", output, s.batch * s.filters * v.out_h * v.out_w * result, result},
        {"input", input, s.batch * s.channels * v.rows() * (int64_t)v.width * element, element},
        {"filters", filters, s.filters * v.k * element, element},
        {"bias", e->bias, s.filters * result, result},
        {"scale", e->scale, s.filters * scale_bytes(c->out_dtype), scale_bytes(c->out_dtype)},
        {"the prologue's scale", v.prologue.scale, (v.prologue.by_image ? s.batch : 1) * s.channels * (int64_t)sizeof(float),
         sizeof(float)},
        {"the prologue's shift", v.prologue.shift, s.channels * (int64_t)sizeof(float), sizeof(float)},
        {"workspace", workspace, workspace_bytes, 1},
    });
}

void set(Conv &v, const pysim_cuda_epilogue *e, const void *input, const void *filters, void *output) {
    v.in = input, v.weights = filters, v.out = output;
    v.product.alpha = e->alpha, v.product.beta = e->beta, v.product.low = e->low, v.product.high = e->high;
    v.product.bias = e->bias, v.product.scale = e->scale, v.product.activation = e->activation;
}

pysim_status attributes(const pysim_cuda_problem *problem, int32_t kernel, pysim_cuda_attributes *out) {
    const ConvRow *row = nullptr;
    const pysim_cuda_conv *c = &problem->conv;
    int sms;
    pysim_status status = check_conv(c);
    if (status == PYSIM_OK) status = registry.find(kernel, c->shape.dtype, &row);
    if (status == PYSIM_OK) status = sms_for(*row, &sms);
    if (status != PYSIM_OK) return status;
    const pysim_cuda_conv part = first_part(c);
    return check(row->attributes(conv_of(&part, nullptr, row), out), "the kernel's attributes");
}

pysim_status workspace_bytes(const Call &call, int64_t *bytes) {
    const ConvRow *row = nullptr;
    const pysim_cuda_conv *c = &call.problem->conv;
    Workspace w;
    pysim_status status = check_conv(c);
    if (status == PYSIM_OK) status = check_schedule(c, call.schedule, &row);
    if (status != PYSIM_OK) return status;
    const pysim_cuda_conv part = first_part(c);
    status = workspace_of(conv_of(&part, call.schedule, row), *row, &w);
    if (status == PYSIM_OK) *bytes = w.total;
    return status;
}

/* Calls run(part's call) for each part of a convolution until one fails. */
template <class Run> pysim_status in_parts(const Call &call, Run run) {
    const pysim_cuda_conv &c = call.problem->conv;
    const pysim_status status = check_conv(&c);
    if (status != PYSIM_OK) return status;
    const pysim_conv s = with_depth(c.shape);
    const Parts p = parts_of(s, c.layout);
    if (p.count() == 1) return run(call);
    const Outputs out(s);
    const int64_t element = dtypes[s.dtype].bytes, result = dtypes[c.out_dtype].bytes, channels = s.channels / s.groups,
                  filters = s.filters / s.groups, pixels = s.depth * s.height * s.width, windows = out.d * out.h * out.w;
    const int64_t of_filter = channels * s.kernel_d * s.kernel_h * s.kernel_w;
    const auto at = [](const void *of, int64_t bytes) { return of ? (const char *)of + bytes : nullptr; };
    for (int64_t number = 0; number < p.count(); number++) {
        const int64_t i = number / (p.group_parts * p.filter_parts), g = number / p.filter_parts % p.group_parts,
                      f = number % p.filter_parts;
        const int64_t image = i * p.images, group = g * p.groups, filter = group * filters + f * p.filters;
        pysim_cuda_problem problem = *call.problem;
        problem.conv.shape = p.of(s, i, g, f);
        pysim_cuda_epilogue e = *call.epilogue;
        e.bias = at(e.bias, filter * result), e.scale = at(e.scale, filter * scale_bytes(c.out_dtype));
        pysim_cuda_prologue prologue = {};
        if (e.prologue) {
            prologue = *e.prologue;
            const int64_t first = group * channels, of_image = prologue.by_image ? image * s.channels : 0;
            prologue.scale = (decltype(prologue.scale))at(prologue.scale, (of_image + first) * (int64_t)sizeof(float));
            prologue.shift = (decltype(prologue.shift))at(prologue.shift, first * (int64_t)sizeof(float));
            e.prologue = &prologue;
        }
        Call part = call;
        part.problem = &problem, part.epilogue = &e;
        part.first = at(call.first, (image * s.channels + group * channels) * pixels * element);
        part.second = at(call.second, filter * of_filter * element);
        part.result = const_cast<char *>(at(call.result, (image * s.filters + filter) * windows * result));
        const pysim_status done = run(part);
        if (done != PYSIM_OK) return done;
    }
    return PYSIM_OK;
}

pysim_status run_part(const Call &call) {
    const ConvRow *row = nullptr;
    const pysim_cuda_conv *c = &call.problem->conv;
    const pysim_cuda_epilogue *e = call.epilogue;
    Workspace w;
    Conv v;
    int sms = 0;
    pysim_status status = check_schedule(c, call.schedule, &row);
    if (status == PYSIM_OK) status = conv_of(c, call.schedule, row, e, &v);
    if (status == PYSIM_OK) status = workspace_of(v, *row, &w);
    if (status == PYSIM_OK) status = check_operands(c, v, e, call.first, call.second, call.result, call.workspace, call.workspace_bytes);
    if (status == PYSIM_OK) status = check_workspace(w.total, call.workspace, call.workspace_bytes);
    if (status == PYSIM_OK) status = sms_for(*row, &sms);
    if (status != PYSIM_OK) return status;
    set(v, e, call.first, call.second, call.result);
    if (e->alpha == 0) return check(conv_reference(v, call.stream), "an output without a product");
    char *at = (char *)round_up((int64_t)(uintptr_t)call.workspace, ALIGN);
    v.own = w.own ? at : nullptr;
    if (w.flags) {
        v.product.flags = (unsigned *)(at + w.own), v.product.partials = at + w.own + w.flags;
        status = check(cudaMemsetAsync(v.product.flags, 0, (size_t)w.flags, call.stream), "flags of partial sums");
    }
    return status == PYSIM_OK ? row->launch(v, sms, call.stream) : status;
}

pysim_status plain_loops_of_part(const Call &call) {
    const pysim_cuda_conv *c = &call.problem->conv;
    Conv v;
    pysim_status status = conv_of(c, nullptr, nullptr, call.epilogue, &v);
    if (status != PYSIM_OK) return status;
    status = check_operands(c, v, call.epilogue, call.first, call.second, call.result, nullptr, 0);
    if (status != PYSIM_OK) return status;
    set(v, call.epilogue, call.first, call.second, call.result);
    return check(conv_reference(v, call.stream), "the reference");
}
}

pysim_status run(const Call &call) { return in_parts(call, run_part); }
pysim_status plain_loops(const Call &call) { return in_parts(call, plain_loops_of_part); }

const Operation convolutions = {[](int32_t kernel) { return is_available(registry, kernel); }, attributes, workspace_bytes, run,
                                plain_loops};
}

int32_t pysim_cuda_conv_count(void) { return pysim::registry.count(); }

pysim_status pysim_cuda_conv_at(int32_t index, pysim_cuda_conv_info *out) { return pysim::registry.describe(index, out, __func__); }
