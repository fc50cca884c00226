/* SPDX-License-Identifier: Apache-2.0
 * The simt family's rows. Its kernels take operands as they lie: any layout, pitch and alignment. */
#include "simt.h"

namespace pysim {
namespace {

#define PYSIM_ROW_simt(dtype, form, bm, bn, bk, wm, wn, tm, tn, stages, cm, cn, capability)                                           \
    {{#dtype "_simt_" #bm "x" #bn "x" #bk "_" #wm "x" #wn "_" #tm "x" #tn "_s" #stages "_c" #cm "x" #cn PYSIM_SUFFIX_##form, "simt",  \
      #form, simt::Type_##dtype::DTYPE, bm, bn, bk, wm, wn, tm, tn, stages, cm, cn, capability},                                       \
     {1, 0, 0},                                                                                                                        \
     simt::launch<PYSIM_SIMT_SHAPE(dtype, form, bm, bn, bk, wm, wn, tm, tn, stages)>,                                                  \
     simt::attributes<PYSIM_SIMT_SHAPE(dtype, form, bm, bn, bk, wm, wn, tm, tn, stages)>},
#define PYSIM_SUFFIX_full
#define PYSIM_SUFFIX_scalar "_scalar"
#define PYSIM_SUFFIX_unpadded "_unpadded"
#define PYSIM_ROW_wmma(...)
#define PYSIM_ROW_mma(...)
#define PYSIM_ROW_wgmma(...)
#define PYSIM_CUDA_GEMM(family, ...) PYSIM_ROW_##family(__VA_ARGS__)
const Row rows[] = {
#include "gemms.inc"
};
}

Rows simt_rows() { return {rows, (int)(sizeof rows / sizeof *rows)}; }
}
