/* SPDX-License-Identifier: Apache-2.0
 * Form `grouped` of depthwise.inc. A kernel (pysim_direct_kernel, native/kernel.h) computes block number `groups` of filters, which belong to one
 * group or to two neighbouring ones, for some rows of outputs. `input` is the image, all its channels; `filters` are those of the block:
 * [channel of the group][tap][filter]. It multiplies no padding. */
#ifndef PYSIM_KERNEL_OF_BLOCKS_H
#define PYSIM_KERNEL_OF_BLOCKS_H
#include "kernel.h"
#define PYSIM_GROUPED(rows, taps) enum { PYSIM_GROUPED_ROWS = rows, PYSIM_GROUPED_TAPS = taps };
#include "depthwise.inc"
#undef PYSIM_GROUPED
#endif
