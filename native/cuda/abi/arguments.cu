/* SPDX-License-Identifier: Apache-2.0
 * Checks the arguments of products and convolutions before any launch. Messages say what is wrong, where, and what would be right. */
#include "abi/arguments.h"

#include <cmath>
#include <cstring>

namespace pysim {
namespace {
enum { DTYPES = 9 };

bool may_become(int32_t dtype, int32_t result) {
    switch (dtype) {
    case PYSIM_F32:
    case PYSIM_TF32:
    case PYSIM_TF32X3: return result == PYSIM_F32;
    case PYSIM_F64: return result == PYSIM_F64;
    case PYSIM_F16: return result == PYSIM_F16 || result == PYSIM_F32;
    case PYSIM_BF16: return result == PYSIM_BF16 || result == PYSIM_F32;
    case PYSIM_S8: return result == PYSIM_S32;
    case PYSIM_F8: return result == PYSIM_F16 || result == PYSIM_BF16 || result == PYSIM_F32;
    default: return false;
    }
}

bool overlap(const Memory &a, const Memory &b) {
    return a.data && b.data && (uintptr_t)a.data < (uintptr_t)b.data + (uint64_t)b.bytes &&
           (uintptr_t)b.data < (uintptr_t)a.data + (uint64_t)a.bytes;
}
}

const DtypeFact dtypes[DTYPES] = {{"f32", 4}, {"f64", 8},  {"f16", 2}, {"bf16", 2},  {"s8", 1},
                                  {"s32", 4}, {"tf32", 4}, {"f8", 1},  {"tf32x3", 4}};

pysim_status check_dtypes(int32_t dtype, int32_t result) {
    if (dtype < 0 || dtype >= DTYPES || result < 0 || result >= DTYPES)
        return fail(PYSIM_BAD_ARGUMENT, "the operands' dtype and the result's are %d and %d; they lie in 0..%d", dtype, result, DTYPES - 1);
    if (!may_become(dtype, result))
        return fail(PYSIM_UNSUPPORTED, "a product of %s cannot have the result type %s", dtypes[dtype].name, dtypes[result].name);
    return PYSIM_OK;
}

pysim_status check_decomposition(int32_t decomposition, int32_t splits, int32_t along_n, int32_t group) {
    if (decomposition < PYSIM_DATA_PARALLEL || decomposition > PYSIM_STREAM_K)
        return fail(PYSIM_BAD_ARGUMENT, "decomposition is %d; expected 0 (data parallel), 1 (split-K) or 2 (stream-K)", decomposition);
    if (decomposition == PYSIM_DATA_PARALLEL ? splits != 1 : splits < 2)
        return fail(PYSIM_BAD_ARGUMENT, "splits is %d; expected 1 for data parallel and at least 2 for the others", splits);
    if ((unsigned)along_n > 1) return fail(PYSIM_BAD_ARGUMENT, "along_n is %d; expected 0 or 1", along_n);
    if (group < 1 || group > 1024) return fail(PYSIM_BAD_ARGUMENT, "group is %d; it lies in 1..1024", group);
    return PYSIM_OK;
}

pysim_status check_epilogue(int32_t result, const pysim_cuda_epilogue *e) {
    if (!e) return fail(PYSIM_BAD_ARGUMENT, "the epilogue is NULL");
    if (!std::isfinite(e->alpha) || !std::isfinite(e->beta))
        return fail(PYSIM_BAD_ARGUMENT, "alpha and beta are %g and %g; expected finite numbers", e->alpha, e->beta);
    if ((unsigned)e->by_row > 1) return fail(PYSIM_BAD_ARGUMENT, "by_row is %d; expected 0 or 1", e->by_row);
    bool known = false, whole_numbers = false;
    const char *name = "";
#define PYSIM_EPILOGUE(number, text, whole, times, function, of) \
    if (e->activation == number) known = true, name = #text, whole_numbers = whole;
#include "epilogues.inc"
#undef PYSIM_EPILOGUE
    if (!known) return fail(PYSIM_BAD_ARGUMENT, "activation %d is not a line of epilogues.inc", e->activation);
    const bool clamps = !strcmp(name, "clamp");
    if (clamps && !(e->low <= e->high)) return fail(PYSIM_BAD_ARGUMENT, "clamp's low %g is not below its high %g", e->low, e->high);
    if (result == PYSIM_S32) {
        if (!whole_numbers) return fail(PYSIM_UNSUPPORTED, "%s needs a floating-point result, not s32", name);
        if (e->scale) return fail(PYSIM_UNSUPPORTED, "a scale needs a floating-point result, not s32");
        const double limit = 2147483647;
        for (const double x : {e->alpha, e->beta, clamps ? e->low : 0, clamps ? e->high : 0})
            if (x != std::floor(x) || std::fabs(x) > limit)
                return fail(PYSIM_UNSUPPORTED, "%g is not a whole number; an s32 result needs one", x);
    }
    return PYSIM_OK;
}

pysim_status check_prologue(const pysim_cuda_prologue *p) {
    if (p && ((unsigned)p->by_image > 1 || (unsigned)p->relu > 1))
        return fail(PYSIM_BAD_ARGUMENT, "the prologue's by_image and relu are %d and %d; expected 0 or 1", p->by_image, p->relu);
    return PYSIM_OK;
}

pysim_status check_memory(std::initializer_list<Memory> all) {
    int place = 0;
    for (const Memory &memory : all) {
        if (!memory.data && place < 3) return fail(PYSIM_BAD_ARGUMENT, "%s is NULL", memory.name);
        if ((uintptr_t)memory.data % memory.element)
            return fail(PYSIM_BAD_ARGUMENT, "%s is not aligned to its elements of %d bytes", memory.name, memory.element);
        place++;
    }
    for (const Memory *written : {all.begin(), all.end() - 1})
        for (const Memory &other : all)
            if (&other != written && overlap(*written, other))
                return fail(PYSIM_BAD_ARGUMENT, "%s overlaps %s, which is written", other.name, written->name);
    return PYSIM_OK;
}

pysim_status check_workspace(int64_t needed, const void *workspace, int64_t bytes) {
    if (!needed || (workspace && bytes >= needed)) return PYSIM_OK;
    return fail(PYSIM_BAD_ARGUMENT, "workspace has %lld bytes; this schedule needs %lld", (long long)(workspace ? bytes : 0),
                (long long)needed);
}
}

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
const char *pysim_cuda_tables(void) {
#define PYSIM_EPILOGUE(number, name, ...) #name " " #number "\n"
    return "declarations " TEXT(PYSIM_DECLARATIONS) " " TEXT(PYSIM_CUDA_DECLARATIONS) "\n"
#include "epilogues.inc"
        ;
#undef PYSIM_EPILOGUE
}
