# SPDX-License-Identifier: Apache-2.0
"""A matrix product as a value: FLOP = 2 m n k."""

from pysim.errors import OperandError
from pysim.problem.dtypes import GEMM_DTYPES
from pysim.problem.fields import Typed, check_fields, check_int64

LAYOUTS = ("nn", "nt", "tn", "tt")  # whether A, then B, is stored transposed


class Gemm(Typed, frozen=True, kw_only=True):
    """C[m][n] = op(A)[m][k] op(B)[k][n], in elements; a transposed operand is stored [k][m] or [n][k].

    Raises ProblemError for a size below 1, an unknown dtype, and FLOP or operand bytes beyond int64.
    """

    m: int
    n: int
    k: int
    trans_a: bool = False
    trans_b: bool = False

    def __post_init__(self) -> None:
        check_fields(self, GEMM_DTYPES)
        check_int64(self, A=self.m * self.k, B=self.k * self.n, C=self.m * self.n)

    @property
    def flops(self) -> int:
        """2 m n k: a multiplication and an addition each."""
        return 2 * self.m * self.n * self.k

    @property
    def operand_elements(self) -> int:
        """Elements of A and B."""
        return self.k * (self.m + self.n)

    @property
    def output_elements(self) -> int:
        return self.m * self.n

    @property
    def layout(self) -> str:
        """One of nn nt tn tt: whether A, then B, is transposed."""
        return "nt"[self.trans_a] + "nt"[self.trans_b]

    @property
    def text(self) -> str:
        """The shortest text that `parse` reads as this problem."""
        suffixes = [self.layout] * (self.layout != "nn") + [self.dtype] * (self.dtype != "f32")
        return ":".join([f"gemm:{self.m}x{self.n}x{self.k}", *suffixes])


def product_of(a: tuple[int, ...], b: tuple[int, ...], trans_a: bool, trans_b: bool, dtype: str) -> Gemm:
    """The product of matrices of these shapes; OperandError if they do not fit together."""
    if len(a) != 2 or len(b) != 2:
        raise OperandError(f"a and b must be matrices; their shapes are {a} and {b}")
    (k, m), (n, depth) = a[:: 1 if trans_a else -1], b[:: 1 if trans_b else -1]
    if k != depth:
        raise OperandError(f"op(a) has {k} columns but op(b) has {depth} rows; expected equal numbers")
    return Gemm(m=m, n=n, k=k, trans_a=trans_a, trans_b=trans_b, dtype=dtype)
