/* SPDX-License-Identifier: Apache-2.0
 * The wgmma family's rows. Types of two bytes take operands that lie either way; the others multiply K-major operands alone. The
 * copy engine wants 16-byte aligned bases and pitches. */
#include "wgmma.h"

namespace pysim {
namespace {

#define PYSIM_ROW(dtype, form, bm, bn, bk, wm, wn, tm, tn, stages, cm, cn, capability)                                                \
    {{#dtype "_wgmma_" #bm "x" #bn "x" #bk "_" #wm "x" #wn "_" #tm "x" #tn "_s" #stages "_c" #cm "x" #cn, "wgmma", #form,              \
      PYSIM_WGMMA_##dtype, bm, bn, bk, wm, wn, tm, tn, stages, cm, cn, capability},                                                    \
     {16, !hopper::Element<PYSIM_WGMMA_##dtype>::MN_MAJOR, !hopper::Element<PYSIM_WGMMA_##dtype>::MN_MAJOR},                           \
     hopper::launch<PYSIM_WGMMA_SHAPE(dtype, bm, bn, wm, wn, stages, cm, cn)>,                                                         \
     hopper::attributes<PYSIM_WGMMA_SHAPE(dtype, bm, bn, wm, wn, stages, cm, cn)>},
#define PYSIM_ROW_simt(...)
#define PYSIM_ROW_wmma(...)
#define PYSIM_ROW_mma(...)
#define PYSIM_ROW_wgmma(...) PYSIM_ROW(__VA_ARGS__)
#define PYSIM_CUDA_GEMM(family, ...) PYSIM_ROW_##family(__VA_ARGS__)
const Row rows[] = {
#include "gemms.inc"
};

/* What a line says twice must agree: a stage is 128 bytes of k, an instruction as wide as its warpgroup's tile. */
#undef PYSIM_ROW
#define PYSIM_ROW(dtype, form, bm, bn, bk, wm, wn, tm, tn, ...)                                                                       \
    static_assert(bk * hopper::Element<PYSIM_WGMMA_##dtype>::BYTES == 128 && tm == 64 && tn == wn, "a wgmma line of gemms.inc");
#include "gemms.inc"
}

Rows wgmma_rows() { return {rows, (int)(sizeof rows / sizeof *rows)}; }
}
