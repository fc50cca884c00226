# SPDX-License-Identifier: Apache-2.0
"""The element types, one line each: everything that depends on a type alone is a column here.

A problem's type says how its operands are multiplied; memory holds them as `array`. `tf32` is f32 in memory, multiplied as 10-bit
mantissas; `tf32x3` is f32 in memory, multiplied as three products of such halves or, on wgmma, as six products of bf16 thirds; `f8` is
e4m3. On a CPU a result has the type `cpu_result`; on a GPU one of `gpu_results`, by default the first.
"""

from typing import NamedTuple


class DType(NamedTuple):
    """`size` in bytes of an operand's element; `sums`: the type that products are summed in; `unit`: unit roundoff (0: exact);
    `array`, `onnx`: its name in NumPy (or ml_dtypes) and ONNX, "" if it has none."""

    name: str
    size: int
    array: str
    onnx: str
    sums: str
    cpu_result: str
    gpu_results: tuple[str, ...]
    unit: float


TABLE = (
    #      name  size  array            onnx        sums   CPU    GPU                     unit
    DType("f32", 4, "float32", "FLOAT", "f32", "f32", ("f32",), 2.0**-24),
    DType("f64", 8, "float64", "DOUBLE", "f64", "f64", ("f64",), 2.0**-53),
    DType("f16", 2, "float16", "FLOAT16", "f32", "f32", ("f16", "f32"), 2.0**-11),
    DType("bf16", 2, "bfloat16", "BFLOAT16", "f32", "f32", ("bf16", "f32"), 2.0**-8),
    DType("s8", 1, "int8", "INT8", "s32", "s32", ("s32",), 0.0),
    DType("tf32", 4, "", "", "f32", "f32", ("f32",), 2.0**-11),
    DType("f8", 1, "float8_e4m3fn", "", "f32", "f32", ("f16", "bf16", "f32"), 2.0**-4),
    DType("tf32x3", 4, "", "", "f32", "f32", ("f32",), 2.0**-22),  # halves: 2^-21 of an element at most
    DType("s32", 4, "int32", "", "s32", "s32", (), 0.0),  # a result only
)
BY_NAME = {one.name: one for one in TABLE}
SIZES = {one.name: one.size for one in TABLE}  # bytes of an element, in memory
AS_HALVES = {"f32": "tf32x3"}  # types that may be multiplied as split halves

GEMM_DTYPES = tuple(one.name for one in TABLE if one.gpu_results)  # of the operands of products
CONV_DTYPES = tuple(name for name in GEMM_DTYPES if name != "f8")  # and of convolutions
RESULT_BYTES = {one.name: SIZES[one.cpu_result] for one in TABLE}  # of the result and the bias, on a CPU; at most that on a GPU
GPU_RESULT_BYTES = {one.name: SIZES[one.gpu_results[0]] for one in TABLE if one.gpu_results}  # by default
SUM_UNITS = {one.name: BY_NAME[one.sums].unit for one in TABLE} | {"f8": 2.0**-14}  # unit roundoff of an accumulator; FP8's keep 13 bits
SUM_BYTES = {one.name: SIZES[one.sums] for one in TABLE}  # of an accumulator
