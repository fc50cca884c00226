/* SPDX-License-Identifier: Apache-2.0
 * Rows of bytes of native/depthwise.inc, forms `taps` and `last`: compiled once per target, beside that target's micro-kernels of bytes. */
#if !defined PRODUCTS && !defined __clang__
#pragma GCC optimize("O2") /* as kernels.c */
#endif
#include "vectors.h"

#include "operators/loops.h"
#include "portable/depthwise_portable.h"
#ifdef PAIRS
#include "depthwise_words.h"
#else
#include "depthwise.h"
#endif
#include "depthwise_last.h"
