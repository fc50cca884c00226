# SPDX-License-Identifier: Apache-2.0
"""Operators on quantised elements, run by the native library (`native/operators/integers.c`): conversions from and to float32, sums of
integer products to elements, tables, pairs of elements, pools, padding, products with weights of four bits.

Each is a `Step`, which is called to run. A quantised element q stands for scale (q - zero). Arrays are dense; elements are uint8 or int8.
"""

from typing import Any, Literal, NamedTuple

import numpy as np

from pysim.record.integers import ByteSum
from pysim.runtime.array_steps import merged_axes
from pysim.runtime.cpu import Array, check, library
from pysim.runtime.operators import Window
from pysim.runtime.steps import Step, WorkingStep, pointer, step_of

BYTES = (np.dtype(np.uint8), np.dtype(np.int8))
_PAIR_AXES = 6
MOST_PRODUCTS, LONGEST_ROW = 1 << 15, 4096  # of PYSIM_...
NIBBLES = 8  # PYSIM_NIBBLES: numbers of a word
_PANEL = 16  # PYSIM_PANEL: columns
_ZERO = 8  # of weights without zeros


class Quantity(NamedTuple):
    """What a quantised value stands for; its elements have this type."""

    scale: float
    zero: int
    dtype: "np.dtype[Any]"

    @property
    def least(self) -> int:
        return int(np.iinfo(self.dtype).min)

    @property
    def most(self) -> int:
        return int(np.iinfo(self.dtype).max)

    def quantized(self, x: Array) -> Array:
        """saturate(round(x / scale) + zero), as the native loops have it."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            shifted = np.rint(x.astype(np.float32) / np.float32(self.scale))
        shifted = np.clip(np.nan_to_num(shifted, nan=-512.0), self.least - self.zero, self.most - self.zero)
        return np.asarray(shifted + self.zero, self.dtype)

    def numbers(self, x: Array) -> Array:
        """What elements stand for."""
        return np.asarray((x.astype(np.int32) - self.zero).astype(np.float32) * np.float32(self.scale))


def _fields(of: Quantity) -> list[Any]:
    return [of.scale, of.zero, of.dtype == np.int8]


def quantize_step(out: Array, x: Array, of: Quantity) -> Step:
    """out = saturate(round(x / scale) + zero) of float32."""
    return step_of("QUANTIZE", library()[0].new("pysim_quantized *", [x.size, _fields(of)]), out, x)


def dequantize_step(out: Array, x: Array, of: Quantity, zero: Array | None = None) -> Step:
    """out = scale (x - zero); `zero`: an array that holds that of unsigned bytes when the step runs."""
    ffi = library()[0]
    at = ffi.NULL if zero is None else ffi.cast("uint8_t *", zero.ctypes.data)
    return step_of("DEQUANTIZE", ffi.new("pysim_quantized *", [x.size, _fields(of), at]), out, x, keep=(zero,))


def quantize_range_step(out: Array, x: Array, scale: Array, zero: Array) -> Step:
    """DynamicQuantizeLinear: also writes the scale, a float32, and the zero, a uint8."""
    return step_of("QUANTIZE_RANGE", library()[0].new("pysim_quantized *", [x.size, [1.0, 0, 0]]), out, x, scale, zero)


def table_step(out: Array, x: Array, table: Array) -> Step:
    """out = table[x], where bytes are read as unsigned."""
    return step_of("TABLE", library()[0].new("pysim_quantized *", [x.size, [1.0, 0, 0]]), out, x, table)


class Sums(NamedTuple):
    """What becomes of a layer's whole sums x[outer][channels][inner], in int32 or float32: t = (x + input zero offset) (input scale scale)
    + shift, and then saturate(round(t) + zero) within low..high of `to`, or t in float32. Input scale and zero are those of a dynamic
    input, else 1. With `factors` the result is saturate(round(activation(t) factors) + zero), which only the stores of layers make."""

    scale: Array
    shift: Array
    offset: Array
    to: Quantity | None
    low: int = 0
    high: int = 0
    activation: Any = None
    factors: Array | None = None


def sums_step(
    out: Array, x: Array, sums: Sums, inner: int, scale: Array | None = None, zero: Array | None = None, whole: bool = True
) -> Step:
    """`whole`: whether floats are whole numbers, to which the zero of a dynamic input adds its offsets."""
    ffi, channels = library()[0], sums.scale.size
    numbers = [ffi.cast(f"{kind} *", one.ctypes.data) for kind, one in zip(("float", "float", "int32_t"), sums[:3], strict=True)]
    given = [ffi.NULL if one is None else ffi.cast(kind, one.ctypes.data) for kind, one in (("float *", scale), ("uint8_t *", zero))]
    to = [1.0, 0, 0] if sums.to is None else _fields(sums.to)
    sizes = [x.size // channels // inner, channels, inner]
    how = ffi.new(
        "pysim_sums *",
        [*sizes, *numbers, *given, to, sums.low, sums.high, sums.to is None, (1 if whole else 2) if x.dtype == np.float32 else 0],
    )
    return step_of("SUMS", how, out, x, keep=(*sums[:3], scale, zero))


def byte_pair_step(
    out: Array, a: Array, b: Array, of: tuple[Quantity, Quantity, Quantity], multiply: bool, low: int, high: int
) -> Step | None:
    """out = a + b or a b, broadcast as in NumPy, of quantised elements, within low..high. None for too many axes."""
    left, right = (np.broadcast_to(x, out.shape) for x in (a, b))
    axes = merged_axes(out.shape, left, right)
    if len(axes) > _PAIR_AXES:
        return None
    sizes, *steps = ([*column] for column in zip(*axes, strict=True))
    how = library()[0].new("pysim_byte_pair *", [sizes, *steps, len(axes), multiply, *map(_fields, of), low, high])
    return step_of("BYTE_PAIR", how, out, a, b)


def byte_products_step(out: Array, a: Array, b: Array, of: tuple[Quantity, Quantity, Quantity], scale: float) -> Step:
    """out (..., rows, columns) = saturate(round(scale sums) + zero) of the products of a (..., rows, k) and b (..., k, columns) less
    their zeros."""
    rows, k, columns = *a.shape[-2:], b.shape[-1]
    how = library()[0].new("pysim_byte_products *", [a.size // (rows * k), rows, columns, k, *map(_fields, of), scale])
    step = WorkingStep("BYTE_PRODUCTS", of=how, first=pointer(a), second=pointer(b), result=pointer(out))
    step.keep(out, a, b)
    return step


def byte_softmax_step(out: Array, x: Array, of: tuple[Quantity, Quantity]) -> Step:
    """Softmax over the last axis."""
    how = library()[0].new("pysim_byte_softmax *", [x.size // x.shape[-1], x.shape[-1], *map(_fields, of)])
    return step_of("BYTE_SOFTMAX", how, out, x)


def byte_sum_of(of: tuple[Quantity, Quantity, Quantity], low: int, high: int) -> ByteSum | None:
    """What gives the bytes of `byte_pair_step` for all bytes, in the store of a convolution whose results are a; None if nothing does."""
    ffi, lib = library()
    pair = ffi.new(
        "pysim_byte_pair *", {"axes": 1, "a": _fields(of[0]), "b": _fields(of[1]), "y": _fields(of[2]), "low": low, "high": high}
    )
    made, found = ffi.new("pysim_byte_sum *"), ffi.new("int32_t *")
    check(lib.pysim_byte_sum_of(pair, made, found))
    return ByteSum(made, _name(of[1]), _name(of[2])) if found[0] else None


def _name(of: Quantity) -> Literal["s8", "u8"]:
    return "u8" if of.dtype == np.uint8 else "s8"


def byte_pool_step(
    out: Array, x: Array, window: Window, largest: bool, of: tuple[Quantity, Quantity], count_padding: bool, block: int = 1
) -> Step:
    """The maximum or mean of windows over the last two axes; channels may be last, all in one `block`."""
    ffi, lib = library()
    along = (number for pair in window for number in pair)
    sizes = [x.size // (x.shape[-2] * x.shape[-1]), *x.shape[-2:], *out.shape[-2:], *along]
    how = ffi.new("pysim_byte_pool *", [[*sizes, largest, count_padding, lib.PYSIM_S8, block], *map(_fields, of)])
    return step_of("BYTE_POOL", how, out, x)


def byte_means_step(out: Array, x: Array, of: Quantity, block: int = 1) -> Step:
    """out = the means of images' planes in float32, of exact sums; channels may be last, all in one `block`."""
    how = library()[0].new("pysim_byte_means *", [out.size, x.size // out.size, block, _fields(of)])
    return step_of("BYTE_MEANS", how, out, x)


def byte_pad_step(out: Array, x: Array, pads: tuple[int, int, int, int], value: int, flip: bool, zero: Array | None = None) -> Step:
    """Images of bytes padded at the top, left, bottom and right by `value`, or by the byte of the array `zero`. `flip`: the upper bit of
    each byte, also of that one, is flipped, which makes x - 128 of x."""
    ffi, (*planes, height, width) = library()[0], x.shape
    at = ffi.NULL if zero is None else ffi.cast("uint8_t *", zero.ctypes.data)
    how = ffi.new("pysim_byte_pad *", [int(np.prod(planes, dtype=np.int64)), height, width, *pads, at, value, 0x80 if flip else 0])
    return step_of("BYTE_PAD", how, out, x, keep=(zero,))


class FewBits(NamedTuple):
    """Weights w[k][column] = scale[k // block][column] (q - zero) of four bits, packed in panels (pysim_few_bits), which products decode in
    registers (`native/operators/few_bits.c`).

    Worked number: of 4096 x 4096 weights in blocks of 32 a call reads 8.4 MB of bits and 2.1 MB of scales, where float32 has 67 MB.
    """

    panels: Array
    columns: int
    block: int
    has_zeros: bool


def takes_bits(k: int, block: int) -> bool:
    """Whether blocks of these sizes are whole words."""
    return k % NIBBLES == 0 and block % NIBBLES == 0


def packed(values: Array, scale: Array, zero: Array, block: int) -> FewBits:
    """Packs values (k, columns) of 0 to 15, and scales and zeros (blocks, columns), float32; a zero may be any number."""
    k, columns = values.shape
    blocks, panels = -(-k // block), -(-columns // _PANEL)
    has_zeros = bool((zero != _ZERO).any())

    def by_panel(of: Array, kind: Any) -> Array:
        """(panels, rows, columns of a panel), with zeros behind the last column."""
        wide = np.zeros((len(of), panels * _PANEL), kind)
        wide[:, :columns] = of
        return wide.reshape(len(of), panels, _PANEL).transpose(1, 0, 2)

    whole = np.zeros((blocks * block, columns), np.uint32)
    whole[:k] = values
    shifts = 4 * np.arange(NIBBLES, dtype=np.uint32)
    words = np.bitwise_or.reduce(whole.reshape(-1, NIBBLES, columns) << shifts[:, None], axis=1)
    words = by_panel(words, np.uint32).reshape(panels, blocks, -1)
    heads = [by_panel(scale.astype(np.float32), np.float32)]
    if has_zeros:
        heads.append(by_panel(zero.astype(np.float32) - _ZERO, np.float32))
    found = np.concatenate([*(one.view(np.uint32) for one in map(np.ascontiguousarray, heads)), words], axis=2)
    return FewBits(np.ascontiguousarray(found), columns, block, has_zeros)


def few_bits_step(out: Array, x: Array, weights: FewBits, bias: Array | None, rounds: bool = False) -> Step:
    """out (rows, columns) = x (rows, k) w + bias, of dense float32. `rounds`: x may be rounded to bytes by blocks."""
    ffi, lib = library()
    k = x.shape[-1]
    about = [x.size // k, weights.columns, k, weights.block, ffi.NULL if bias is None else ffi.cast("void *", bias.ctypes.data)]
    how = ffi.new("pysim_few_bits *", [*about, weights.has_zeros, rounds, lib.PYSIM_F32])
    step = WorkingStep("FEW_BITS", of=how, first=pointer(x), second=pointer(weights.panels), result=pointer(out))
    step.keep(out, x, weights.panels, bias)
    return step
