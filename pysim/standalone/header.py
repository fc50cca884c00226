# SPDX-License-Identifier: Apache-2.0
"""plan.h: the problem, the schedule and the epilogue of a plan as C constants, its prediction, and the tolerance of its test."""

import textwrap

import numpy as np

from pysim.check.bounds import bound_of, sums_of
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import BY_NAME
from pysim.problem.text import Workload
from pysim.record.plan import Plan, blocks_of, on_cpu
from pysim.record.schedule import DECOMPOSITIONS, PACK, STATIONARY
from pysim.standalone.expression import Code

WIDTH = 110  # of lines in plan.h
_ELEMENTS = {"f32": "float", "f64": "double", "bf16": "uint16_t", "s8": "int8_t"}
_RESULTS = _ELEMENTS | {"bf16": "float", "s8": "int32_t"}
_VALUES = {"bf16": "plan_bf16_value(x)"}  # others: the element itself
_ROUNDED = {"bf16": "plan_bf16(x)", "s8": "(int8_t)(x * 100)"}  # a number in [-1, 1) as an element
_UNITS = {"float": 2.0**-24, "double": 2.0**-53, "int32_t": 0.0}
_NARROW = {"__half": 2.0**-11, "__nv_bfloat16": 2.0**-8}
_CUDA = {
    "f32": "float",
    "tf32": "float",
    "tf32x3": "float",
    "f64": "double",
    "s8": "int8_t",
    "s32": "int32_t",
    "f16": "__half",
    "bf16": "__nv_bfloat16",
    "f8": "__nv_fp8_e4m3",
}
_CUDA_ROUNDED = {"s8": "(int8_t)(x * 100)", "tf32": "(float)(floor(x * 1024) / 1024)"}
_BF16 = """
static inline float plan_bf16_value(uint16_t x) {
    const uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline uint16_t plan_bf16(double x) {
    const float value = (float)x;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}
"""


def header_of_cpu(plan: Plan, index: int, epilogue: tuple[str, Code, int] | None) -> str:
    """plan.h of a CPU's plan, whose kernel is row `index`. `epilogue`: the user's expression, its code, and its activation's number."""
    schedule, _ = on_cpu(plan)
    w = plan.workload
    sizes = {name: getattr(schedule, name) for name in ("windows", "filters", "channels", "k2", "k3")} | {"outputs": schedule.outputs or 0}
    codes = {"algorithm": 0, "kernel": index, "stationary": STATIONARY.index(schedule.stationary), "pack": PACK.index(schedule.pack)}
    kind = "conv" if isinstance(w, Conv) else "gemm"
    blocks = dict(zip(("input_block", "output_block"), blocks_of(plan.layout), strict=True)) if isinstance(w, Conv) else {}
    problem = f"{{.kind = PYSIM_{kind.upper()}, .{kind} = {_struct(_fields(w) | blocks)}}}"
    lines = [
        f"static const pysim_problem PLAN_PROBLEM = {problem};",
        f"static const pysim_schedule PLAN_SCHEDULE = {_struct(codes | sizes)};",
        f"enum {{ PLAN_THREADS = {plan.threads}, PLAN_ACTIVATION = {epilogue[2] if epilogue else 0} }};",
        f"#define PLAN_{kind.upper()} PLAN_PROBLEM.{kind}",
    ]
    return _header(plan, "pysim.h", _ELEMENTS[w.dtype], _RESULTS[w.dtype], lines, epilogue)


def header_of_cuda(plan: Plan, epilogue: tuple[str, Code, int] | None) -> str:
    """plan.h of a GPU's plan, whose rows are the only ones of their tables."""
    launch, w = plan.launch, plan.workload
    result = BY_NAME[w.dtype].gpu_results[0]
    kind = "conv" if isinstance(w, Conv) else "gemm"
    types = {"dtype": f"PYSIM_{w.dtype.upper()}"}
    if isinstance(w, Conv):
        block = (lambda channels: channels) if plan.layout == "nhwc" else (lambda channels: 1)
        shape = {f"shape.{name}": value for name, value in (_fields(w) | types).items()}
        fields = shape | {"layout": f"PYSIM_{plan.layout.upper()}", "out_dtype": f"PYSIM_{result.upper()}"}
        plain = _fields(w) | types | {"input_block": block(w.channels), "output_block": block(w.filters)}
    else:
        plain = _fields(w) | types
        fields = plain | {"c_dtype": f"PYSIM_{result.upper()}"}
    schedule: dict[str, object] = {
        "kernel": int(not isinstance(w, Conv) and bool(launch.gemm)),  # the other row of gemm/ comes first
        "decomposition": DECOMPOSITIONS.index(launch.decomposition),
        "splits": launch.splits,
        "along_n": launch.along_n,
        "group": launch.group,
        "gemm": 0 if launch.gemm else -1,
    }
    lines = [
        *_assigned(
            "pysim_cuda_problem", "PLAN_PROBLEM", {"kind": f"PYSIM_{kind.upper()}", **{f"{kind}.{name}": of for name, of in fields.items()}}
        ),
        *_assigned("pysim_cuda_schedule", "PLAN_SCHEDULE", schedule),
        *_assigned(f"pysim_{kind}", f"PLAN_{kind.upper()}", plain),
        f"enum {{ PLAN_ACTIVATION = {epilogue[2] if epilogue else 0} }};",
    ]
    return _header(plan, "pysim_cuda.h", _CUDA[w.dtype], _CUDA[result], lines, epilogue)


def _assigned(kind: str, name: str, fields: dict[str, object]) -> list[str]:
    """A constant of a struct, field by field: C++17 has no designated initialisers."""
    made = [f"    of.{field} = {int(value) if isinstance(value, bool) else value};" for field, value in fields.items()]
    return [
        f"static inline {kind} {name.lower()}_of() {{",
        f"    {kind} of = {{}};",
        *made,
        "    return of;",
        "}",
        f"static const {kind} {name} = {name.lower()}_of();",
    ]


def _header(plan: Plan, abi: str, element: str, result: str, lines: list[str], epilogue: tuple[str, Code, int] | None) -> str:
    w, bound, on_gpu = plan.workload, bound_of(plan), isinstance(plan.on, Gpu)
    value, rounded = (
        (_VALUES.get(w.dtype, "x"), _ROUNDED.get(w.dtype, f"({element})x"))
        if not on_gpu
        else ("(double)(float)x", _CUDA_ROUNDED.get(w.dtype, "plan_element((float)x)"))
    )
    if element == "double":
        value, rounded = "x", "x"
    unit = sums_of(w.dtype, 1, np.dtype(np.float32), on_gpu).unit
    channels_last = on_gpu and plan.layout == "nhwc"
    filters = "(((f) * (H) + (r)) * (W) + (s)) * (C) + (k)" if channels_last else "(((f) * (C) + (k)) * (H) + (r)) * (W) + (s)"
    return "\n".join(
        [
            "/* SPDX-License-Identifier: Apache-2.0",
            f" * Generated by pysim: {w.text} on {plan.machine}.",
            f" * {plan.name} */",
            "#ifndef PLAN_H",
            "#define PLAN_H",
            "#include <math.h>",
            "#include <string.h>",
            *(["", "#include <cuda_bf16.h>", "#include <cuda_fp16.h>", "#include <cuda_fp8.h>"] if on_gpu else []),
            "",
            f'#include "{abi}"',
            "",
            f"#define PLAN_IS_CONV {int(isinstance(w, Conv))}",
            *lines,
            "/* element f, k, r, s of C x H x W filters */",
            f"#define PLAN_FILTER(f, k, r, s, C, H, W) ({filters})",
            "",
            f"typedef {element} plan_element;",
            f"typedef {result} plan_result;",
            *([_BF16.strip()] if w.dtype == "bf16" and not on_gpu else []),
            f"static inline double plan_value(plan_element x) {{ return {value}; }}",
            f"static inline double plan_result_value(plan_result x) {{ return {'x' if result in _UNITS else '(double)(float)x'}; }}",
            f"static inline plan_element plan_rounded(double x) {{ return {rounded}; }}",
            "",
            "/* predicted seconds, floating-point operations, and the largest error that the test allows (plain.h) */",
            f"static const double PLAN_SECONDS = {plan.seconds!r}, PLAN_FLOPS = {float(w.flops)!r};",
            f"static const double PLAN_UNIT = {unit!r}, PLAN_RESULT_UNIT = {(_UNITS | _NARROW)[result]!r};",
            f"static const double PLAN_GROWTH = {float(bound.growth)!r}, PLAN_RMS = {float(bound.rms)!r};",
            *(_epilogue(result, *epilogue[:2], on_gpu) if epilogue else []),
            "#endif",
            "",
        ]
    )


def _epilogue(result: str, text: str, code: Code, on_gpu: bool) -> list[str]:
    """The expression for the test and, on a CPU, for the stores (native/standalone/epilogue.c; on a GPU native/cuda/core/epilogue.cuh)."""
    unit = 1e-12 if result == "double" else max(1e-5, 8 * (_UNITS | _NARROW)[result])
    return [
        "",
        f'#define PLAN_EPILOGUE "{text}"',
        *([] if on_gpu else [f"#define PLAN_VECTOR_EPILOGUE {code.vector}"]),
        f"static const double PLAN_EPILOGUE_UNIT = {unit!r};",
        "static inline double plan_logistic(double x) { return 1 / (1 + exp(-x)); }",
        f"static inline double plan_epilogue(double x) {{ return {code.number.replace('T(', '(double)(')}; }}",
    ]


def _fields(w: Workload) -> dict[str, object]:
    """The fields of a problem's struct in native/pysim.h, of dense row-major operands."""
    dtype: dict[str, object] = {"dtype": f"PYSIM_{w.dtype.upper()}"}
    if isinstance(w, Conv):
        return {**w.sizes, **dtype}
    fields: dict[str, object] = {name: getattr(w, name) for name in w.__struct_fields__} | dtype
    return fields | {"lda": w.m if w.trans_a else w.k, "ldb": w.k if w.trans_b else w.n, "ldc": w.n}


def _struct(fields: dict[str, object]) -> str:
    """An initialiser that names every field."""
    kept = "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}"
    named = ", ".join(f".{name}{kept}{int(value) if isinstance(value, bool) else value}" for name, value in fields.items())
    return "{" + textwrap.fill(named, WIDTH, initial_indent="\n    ", subsequent_indent=" " * 4).replace(kept, " = ") + "}"
