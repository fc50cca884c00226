/* SPDX-License-Identifier: Apache-2.0
 * The functions that epilogues.inc names, by the numbers of its activations. */
#ifndef PYSIM_CUDA_FUNCTION_H
#define PYSIM_CUDA_FUNCTION_H

namespace pysim {

/* Those up to `clamped` take at most two comparisons and map whole numbers to whole numbers; `sloped` multiplies by one of two factors. */
enum Function { same, positive, clamped, sloped, logistic, normal, ramp };

__host__ __device__ constexpr bool is_smooth(Function function) { return function > sloped; }

__host__ __device__ inline Function function_of(int activation) {
    switch (activation) {
#define PYSIM_EPILOGUE(number, name, whole, times, function, of) \
    case number: return function;
#include "epilogues.inc"
#undef PYSIM_EPILOGUE
    }
    return same;
}
}
#endif
