/* SPDX-License-Identifier: Apache-2.0
 * What Python names by number, since it reads the same files: the declarations, and the lines of the tables. Python compares this text with its own
 * as it opens the library (pysim/registry/cpu.py: tables), so a library of other files is refused. */
#include "pysim.h"

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
#define KERNEL(target, dtype, form, windows, filters, ...) #dtype "_" #form "_" #windows "x" #filters "__" #target "\n"
#define NUMBERED(number, name, ...) #name " " #number "\n"

static const char tables[] = "declarations " TEXT(PYSIM_DECLARATIONS) "\n"
#define PYSIM_ROW(...) KERNEL(__VA_ARGS__)
#include "kernels.inc"
#define PYSIM_DIRECT_ROW(...) KERNEL(__VA_ARGS__)
#include "depthwise.inc"
#define PYSIM_SKINNY_ROW(...) KERNEL(__VA_ARGS__)
#include "skinny.inc"
#define PYSIM_PHASES_ROW(...) KERNEL(__VA_ARGS__)
#include "polyphase.inc"
#define PYSIM_NCHWC_ROW(...) KERNEL(__VA_ARGS__)
#include "direct_nchwc.inc"
#define PYSIM_ALGORITHM(name, problem) #name " " #problem "\n"
#include "algorithms.inc"
#define PYSIM_EPILOGUE(...) NUMBERED(__VA_ARGS__)
#include "epilogues.inc"
#define PYSIM_ROWS_OF(...) NUMBERED(__VA_ARGS__)
#include "rows.inc"
    ;

const char *pysim_tables(void) { return tables; }
