# SPDX-License-Identifier: Apache-2.0
"""Strassen's algorithm of matrix products with a prepared B; `panels` computes the seven products (`pysim.algorithms.seven_products`).

Worked number: gemm:197x576x192 in one block is seven products of 99x288x96; a last row meets zeros.
"""

import msgspec

from pysim.algorithms.cpu import panels
from pysim.algorithms.seven_products import SevenProducts, Sizes
from pysim.problem.gemm import Gemm
from pysim.record.cost import Reason
from pysim.record.plan import Layout

NAME = "strassen"


def half(problem: Gemm, rows: int) -> Gemm:
    return msgspec.structs.replace(problem, m=rows, n=problem.n // 2, k=problem.k // 2, trans_a=False, trans_b=False)


def part(problem: Gemm, rows: int, images: int) -> Gemm:
    return msgspec.structs.replace(problem, m=rows)


def sizes(problem: Gemm) -> Sizes:
    return Sizes(problem.m, problem.k, problem.n, 1, False)


def unfit(problem: Gemm, layout: Layout) -> Reason | None:
    if problem.trans_a:
        return Reason("shape", "it takes A as it is, not transposed")
    if problem.m < 2 or problem.n % 2 or problem.k % 2:
        return Reason("shape", f"it halves {problem.m} rows, {problem.n} columns and k of {problem.k}: 2 rows or more, and even numbers")
    return None


ALGORITHM = SevenProducts(NAME, Gemm, lambda layout: panels, unfit, half, part, sizes)
