/* SPDX-License-Identifier: Apache-2.0
 * The epilogue of an exported plan, applied to each tile that a kernel has just stored and that is still in L1. PLAN_VECTOR_EPILOGUE is the
 * expression in vectors; it stands in plan.h. */
#include <math.h>

#include "operators/loops.h"
#include "templates/instance.h"

#include "templates/activations.h"

/* a where the mask's bits are ones, else b. */
INLINE VEC plan_select(BITS mask, VEC a, VEC b) { return (VEC)((mask & (BITS)a) | (~mask & (BITS)b)); }
INLINE VEC plan_sigmoid(VEC x) { return 1 / (1 + exponential(-x)); }
INLINE VEC plan_abs(VEC x) { return where_negative(x, -x, x); }
/* As C's fmax and fmin: of a NaN and a number, the number. */
INLINE VEC plan_max(VEC a, VEC b) { return plan_select((BITS)(a > b) | (BITS)(b != b), a, b); }
INLINE VEC plan_min(VEC a, VEC b) { return plan_select((BITS)(a < b) | (BITS)(b != b), a, b); }
INLINE VEC plan_sqrt(VEC x) {
    for (int i = 0; i < LANES; i++) x[i] = (T)sqrt(x[i]);
    return x;
}
INLINE VEC plan_log(VEC x) {
    for (int i = 0; i < LANES; i++) x[i] = (T)log(x[i]);
    return x;
}

#include <plan.h>

static void finish_rows(const pysim_finish *f, void *to, int64_t pitch, int64_t rows, int64_t columns) {
    T *out = to;
    (void)f;
    for (int64_t r = 0; r < rows; r++, out += pitch)
        for (int64_t i = 0; i < columns; i += LANES) {
            const MASK some = v_lanes(0, columns - i);
            const VEC x = v_load_mask(out + i, some);
            v_store_mask(out + i, PLAN_VECTOR_EPILOGUE, some);
        }
}

#define DEFINED(target, dtype) const pysim_loops pysim_loops_##dtype##__##target = {.finish = finish_rows};
#define PYSIM_LOOPS(target, dtype) MINE(target, dtype, DEFINED)(target, dtype)
#include "loops.inc"
