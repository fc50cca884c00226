# SPDX-License-Identifier: Apache-2.0
"""Problems as values: convolutions and matrix products, their one-word text, and the sets of them that are shipped.

With input I[N][C][H][W], filters F[M][C/g][R][S] and output O[N][M][P][Q] (Q likewise from W, S, left and right):

    P = floor((H + top + bottom - extent) / stride) + 1    extent = dilation (R - 1) + 1    FLOP = 2 N M P Q (C/g) R S

The text is benchdnn's grammar (oneDNN, `tests/benchdnn/doc/driver_conv.md`): `dh` is the dilation less one, and the
bottom padding is whatever makes `oh` true. Padding that no window reads makes no other problem: where the top's padding
gives the same output at the bottom too, the bottom's is set to it, otherwise to the least that gives this output.

Worked number: conv:mb1ic64ih56oc64kh3ph1 has 56 x 56 = 3,136 windows and 2 * 64 * 3,136 * 64 * 9 = 231,211,008 FLOP.
"""

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import force_setattr

from pysim.errors import ProblemError, choose
from pysim.files import read_text

DTYPES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2, "s8": 1}  # bytes of one element of the operands
CONV_DTYPES = DTYPES | {"tf32": 4}  # f32 in memory, multiplied as 10-bit mantissas on a GPU
GEMM_DTYPES = CONV_DTYPES | {"f8": 1}  # e4m3
# of the result and the bias on a CPU: f32 for f16 and bf16, s32 for s8; at most that on a GPU
RESULT_BYTES = {"f32": 4, "f64": 8, "f16": 4, "bf16": 4, "s8": 4, "tf32": 4, "f8": 4}
LAYOUTS = ("nn", "nt", "tn", "tt")  # is A, is B stored transposed
INT64_MAX = (1 << 63) - 1
SHIPPED = Path(__file__).parent / "sets"

_SIZES = {"g": "groups", "mb": "batch", "ic": "channels", "oc": "filters", "ih": "height", "iw": "width"}
_SIZES |= {"kh": "kernel_h", "kw": "kernel_w", "sh": "stride_h", "sw": "stride_w"}
_FROM_ZERO = ("ph", "pw", "dh", "dw")
_FIELDS = (*_SIZES, "oh", "ow", *_FROM_ZERO)
_DEPTH = ("id", "od", "kd", "sd", "pd", "dd")
_CONV_RIGHT = "conv:mb1ic64ih56oc64kh3ph1"
_GEMM_RIGHT = "gemm:512x2048x1024"
_TOKEN = re.compile(r"(?P<name>[a-z]+)(?P<digits>[0-9]*)|_+|(?P<other>.)", re.ASCII | re.DOTALL)
_QUOTED_LABEL = re.compile(r'_?n"([^"\r\n]*)"')
_LABEL_END = re.compile(r"[^A-Za-z0-9_./*+-]")  # what a label without quotes cannot have
_LINE = re.compile(r'((?:[^\s#"]|"[^"]*")*)(?:\s*|\s+#.*|#.*)$')
_MAX_FILE_BYTES = 1 << 20  # of a list: 25,000 problems or more


class _Axis(NamedTuple):
    """The height or the width of a convolution, in elements."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int = 0
    after: int = 0

    @property
    def extent(self) -> int:
        return self.dilation * (self.kernel - 1) + 1

    @property
    def out(self) -> int:
        return (self.size + self.before + self.after - self.extent) // self.stride + 1

    def ending(self, out: int) -> int:
        """The padding at the end that gives `out` outputs: that of the beginning where it does, otherwise the least."""
        if self._replace(after=self.before).out == out:
            return self.before
        return max(0, (out - 1) * self.stride + self.extent - self.size - self.before)


class Conv(msgspec.Struct, frozen=True, kw_only=True):
    """A 2-D convolution, NCHW, all in elements; dilation 1 is a dense kernel. Equal problems are equal values.

    Raises ProblemError for a size below 1, a padding below 0, an output below 1, groups that do not divide, an unknown
    dtype, and whatever int64 cannot count: the FLOP, or the bytes of an operand or of the im2col matrix.
    """

    batch: int = 1
    channels: int
    height: int
    width: int
    filters: int
    kernel_h: int
    kernel_w: int
    stride_h: int = 1
    stride_w: int = 1
    dilation_h: int = 1
    dilation_w: int = 1
    pad_top: int = 0
    pad_left: int = 0
    pad_bottom: int = 0
    pad_right: int = 0
    groups: int = 1
    dtype: str = "f32"

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.channels % self.groups or self.filters % self.groups:
            sizes = f"{self.channels} channels (ic) and {self.filters} filters (oc)"
            raise ProblemError(f"groups (g) is {self.groups}; it should divide {sizes}")
        for side, axis in (("rows", self._rows), ("columns", self._columns)):
            if axis.out < 1:
                spans = f"{axis.size + axis.before + axis.after}, the dilated kernel {axis.extent}"
                raise ProblemError(f"the output has no {side}: the padded input spans {spans}; it should be no smaller")
        force_setattr(self, "pad_bottom", self._rows.ending(self.out_h))
        force_setattr(self, "pad_right", self._columns.ending(self.out_w))
        taps = self.channels // self.groups * self.kernel_h * self.kernel_w
        padded = (self.height + self.pad_top + self.pad_bottom) * (self.width + self.pad_left + self.pad_right)
        _check_int64(
            self,
            padded_input=self.batch * self.channels * padded,
            filters=self.filters * taps,
            output=self.batch * self.filters * self.windows,
            im2col_matrix=self.batch * self.groups * taps * self.windows,
        )

    @property
    def _rows(self) -> _Axis:
        return _Axis(self.height, self.kernel_h, self.stride_h, self.dilation_h, self.pad_top, self.pad_bottom)

    @property
    def _columns(self) -> _Axis:
        return _Axis(self.width, self.kernel_w, self.stride_w, self.dilation_w, self.pad_left, self.pad_right)

    @property
    def out_h(self) -> int:
        """P, rows of the output."""
        return self._rows.out

    @property
    def out_w(self) -> int:
        """Q, columns of the output."""
        return self._columns.out

    @property
    def windows(self) -> int:
        """P Q, outputs of one filter in one image."""
        return self.out_h * self.out_w

    @property
    def flops(self) -> int:
        """2 N M P Q (C/g) R S: a multiplication and an addition each, padding included."""
        macs = self.channels // self.groups * self.kernel_h * self.kernel_w * self.windows
        return 2 * self.batch * self.filters * macs

    @property
    def pointwise(self) -> bool:
        """1x1, stride 1, no padding: the input is already the matrix that im2col would build."""
        return (self.kernel_h, self.kernel_w, self.stride_h, self.stride_w) == (1, 1, 1, 1) and not self.padded

    @property
    def padded(self) -> bool:
        return any((self.pad_top, self.pad_left, self.pad_bottom, self.pad_right))

    @property
    def text(self) -> str:
        """The shortest text that both `parse` and benchdnn read as this problem (benchdnn takes the dtype apart)."""
        square = self._rows[:-1] == self._columns[:-1]
        out_h = self.pad_bottom != self.pad_top
        out_w = self.pad_right != (self.pad_bottom if square else self.pad_left)
        wide = out_w or not square

        def pair(letter: str, rows: int, columns: int, default: int = -1) -> str:
            written = (rows, columns) != (default, default)
            return f"{letter}h{rows}" * written + f"{letter}w{columns}" * (written and wide)

        words = [f"g{self.groups}" * (self.groups != 1), f"mb{self.batch}ic{self.channels}"]
        words += [pair("i", self.height, self.width), f"oc{self.filters}"]
        words += [f"oh{self.out_h}" * out_h, f"ow{self.out_w}" * out_w, pair("k", self.kernel_h, self.kernel_w)]
        words += [pair("s", self.stride_h, self.stride_w, default=1)]
        words += [pair("p", self.pad_top, self.pad_left, default=-1 if out_h or out_w else 0)]
        words += [
            pair("d", self.dilation_h - 1, self.dilation_w - 1, default=0),
            f":{self.dtype}" * (self.dtype != "f32"),
        ]
        return "conv:" + "".join(words)


class Gemm(msgspec.Struct, frozen=True, kw_only=True):
    """C[m][n] = op(A)[m][k] op(B)[k][n], in elements; a transposed operand is stored [k][m] or [n][k].

    Raises ProblemError for a size below 1, an unknown dtype, and FLOP or operand bytes beyond int64.
    """

    m: int
    n: int
    k: int
    trans_a: bool = False
    trans_b: bool = False
    dtype: str = "f32"

    def __post_init__(self) -> None:
        _check_fields(self)
        _check_int64(self, A=self.m * self.k, B=self.k * self.n, C=self.m * self.n)

    @property
    def flops(self) -> int:
        """2 m n k: a multiplication and an addition each."""
        return 2 * self.m * self.n * self.k

    @property
    def layout(self) -> str:
        """One of nn nt tn tt: whether A, then B, is transposed."""
        return "nt"[self.trans_a] + "nt"[self.trans_b]

    @property
    def text(self) -> str:
        """The shortest text that `parse` reads as this problem."""
        suffixes = [self.layout] * (self.layout != "nn") + [self.dtype] * (self.dtype != "f32")
        return ":".join([f"gemm:{self.m}x{self.n}x{self.k}", *suffixes])


Workload = Conv | Gemm


class Layer(NamedTuple):
    """A problem, what it is called where it came from, and how often it stands there."""

    workload: Workload
    label: str = ""
    count: int = 1  # type: ignore[assignment]  # the field hides tuple.count, which nobody needs on three unlike items


def _check_fields(problem: Workload) -> None:
    """Sizes become plain ints (NumPy's are taken, so that no product wraps); what a field may not hold is refused."""
    for name in problem.__struct_fields__:
        value = getattr(problem, name)
        if name == "dtype":
            known = GEMM_DTYPES if isinstance(problem, Gemm) else CONV_DTYPES
            if not isinstance(value, str) or value not in known:
                raise ProblemError(f"dtype is {_quote(value)}; {choose(value, known)}")
        elif name.startswith("trans_"):
            if not isinstance(value, bool):
                raise ProblemError(f"{name} is {_quote(value)}; it should be True or False")
        else:
            try:
                value = operator.index(value)
            except TypeError:
                raise ProblemError(f"{name} is {_quote(value)}; it should be a whole number") from None
            least = 0 if name.startswith("pad_") else 1
            if not least <= value <= INT64_MAX:
                shown = value if abs(value) <= INT64_MAX else "beyond int64"
                raise ProblemError(f"{name} is {shown}; it should be at least {least} and fit in int64")
            force_setattr(problem, name, value)


def _check_int64(problem: Workload, **elements: int) -> None:
    sizes = dict.fromkeys(("output", "C"), RESULT_BYTES[problem.dtype])
    counts = {f"{name} in bytes": count * sizes.get(name, GEMM_DTYPES[problem.dtype]) for name, count in elements.items()}
    for name, count in (counts | {"FLOP count": problem.flops}).items():
        if count > INT64_MAX:
            what = f"the {name.replace('_', ' ')} would be {count:.2e}"
            raise ProblemError(f"{what}; it should fit in int64, so be at most {INT64_MAX:.2e}")


def parse(text: str) -> Workload:
    """The problem of a text such as `conv:mb1ic64ih56oc64kh3ph1` or `gemm:512x2048x1024:tn:f16` (M x N x K).

    A label is dropped. Raises ProblemError, which names the field, its character (from 1) and a right example.
    """
    return _parse(text).workload


def _parse(text: str, bare: bool = False) -> Layer:
    """A problem with its label. `bare` allows benchdnn's own lines, which have no `conv:` or `gemm:` before them."""
    if not isinstance(text, str):
        raise ProblemError(f"a problem is a text such as {_CONV_RIGHT}, not {_quote(text)}")
    text = text.strip()
    label, masked = "", text
    if found := _QUOTED_LABEL.search(text):  # "_" means nothing, so writing it over the label keeps every position
        label, masked = found[1], text[: found.start()] + "_" * len(found[0]) + text[found.end() :]
    try:
        kind, parts = _split(masked, bare)
        if kind == "gemm":
            return Layer(_parse_gemm(parts), label)
        descriptor, start = parts[0]
        last = max((found.end() for found in _LABEL_END.finditer(descriptor)), default=0)
        if (at := descriptor.find("n", last)) >= 0:
            label, parts[0] = label or descriptor[at + 1 :], (descriptor[:at], start)
        return Layer(_parse_conv(parts), label)
    except ProblemError as error:
        raise ProblemError(f"{_quote(text)}: {error}") from None


def _split(text: str, bare: bool) -> tuple[str, list[tuple[str, int]]]:
    """The kind, and what stands between the colons after it, each with its place in the text."""
    kind, at = text[:4], 5
    if text[:5] not in ("conv:", "gemm:"):
        if not bare or not re.match(r"[a-z0-9]", text):
            raise _wrong(0, 'a problem begins with "conv:" or "gemm:"', f"{_CONV_RIGHT} or {_GEMM_RIGHT}")
        kind, at = "gemm" if text[0].isdigit() else "conv", 0
    parts = []
    for part in text[at:].split(":"):
        parts.append((part, at))
        at += len(part) + 1
    return kind, parts


def _wrong(at: int, what: str, right: str = _CONV_RIGHT) -> ProblemError:
    return ProblemError(f"character {at + 1}: {what}; right is e.g. {right}")


def _parse_conv(parts: list[tuple[str, int]]) -> Conv:
    descriptor, start = parts[0]
    fields = _conv_fields(descriptor, start)
    end = start + len(descriptor)
    dtype, _ = _suffixes(parts[1:], layouts=False)
    given = {"mb": 1, "g": 1, "sh": 1, "dh": 0} | {name: number for name, (number, _) in fields.items()}
    for name in ("ic", "ih", "oc", "kh"):
        if name not in given:
            raise _wrong(end, f'the field "{name}" ({_SIZES[name]}) is missing')
    for name in "iksd":
        given.setdefault(f"{name}w", given[f"{name}h"])
    rows = _Axis(given["ih"], given["kh"], given["sh"], given["dh"] + 1)
    columns = _Axis(given["iw"], given["kw"], given["sw"], given["dw"] + 1)
    top, out_h = given.get("ph"), given.get("oh")
    left = given.get("pw", top)
    out_w = given.get("ow", out_h if rows == columns and left == top else None)
    rows = _padded("oh", rows, top, out_h, fields.get("oh", (0, end))[1])
    columns = _padded("ow", columns, left, out_w, fields.get("ow", (0, end))[1])
    return Conv(
        dilation_h=rows.dilation,
        dilation_w=columns.dilation,
        pad_top=rows.before,
        pad_left=columns.before,
        pad_bottom=rows.after,
        pad_right=columns.after,
        dtype=dtype,
        **{field: given[name] for name, field in _SIZES.items()},
    )


def _padded(field: str, axis: _Axis, before: int | None, out: int | None, at: int) -> _Axis:
    """The axis with its padding: symmetric unless `out` asks otherwise; without `before`, half of what `out` needs."""
    if out is None:
        return axis._replace(before=before or 0, after=before or 0)
    if before is None:
        before = max(0, (out - 1) * axis.stride + axis.extent - axis.size) // 2
    axis = axis._replace(before=before)
    if out < axis.out:
        what = f"{field}{out} cannot be: even without padding at the end it is {axis.out}"
        raise _wrong(at, what, f"{field}{axis._replace(after=before).out}, padded alike on both sides")
    return axis._replace(after=axis.ending(out))


def _conv_fields(descriptor: str, start: int) -> dict[str, tuple[int, int]]:
    """Field name -> (number, where it stands in the text)."""
    fields: dict[str, tuple[int, int]] = {}
    for token in _TOKEN.finditer(descriptor):
        name, digits, at = token["name"], token["digits"], start + token.start()
        if token["other"]:
            raise _wrong(at, f"{_quote(token['other'])} stands where a field should begin")
        if not name:
            continue
        if name not in _FIELDS:
            also = " of a 2-D convolution, and no other is read" if name in _DEPTH else ""
            raise _wrong(at, f"{_quote(name)} is no field{also}; {choose(name, _FIELDS)}")
        if name in fields:
            raise _wrong(at, f'the field "{name}" stands twice')
        if not digits:
            raise _wrong(start + token.end(), f'the field "{name}" has no number')
        fields[name] = (_number(at, name, digits, least=0 if name in _FROM_ZERO else 1), at)
    return fields


def _number(at: int, name: str, digits: str, least: int) -> int:
    significant = digits.lstrip("0") or "0"  # int() refuses thousands of digits
    if len(significant) > 19 or int(significant) > INT64_MAX:
        raise _wrong(at, f"{_quote(name + digits)} does not fit in int64", f"{name}{INT64_MAX} at most")
    if int(significant) < least:
        raise _wrong(at, f"{_quote(name + digits)} is too small", f"{name}{least} or more")
    return int(significant)


def _parse_gemm(parts: list[tuple[str, int]]) -> Gemm:
    """`MxNxK`, or benchdnn's matmul `MxK:KxN`."""
    sizes, rest = _dimensions(*parts[0]), parts[1:]
    if rest and rest[0][0][:1].isdigit():
        second = _dimensions(*rest[0])
        if len(sizes) != 2 or len(second) != 2 or sizes[1] != second[0]:
            raise _wrong(rest[0][1], "two matrices are MxK:KxN, with one K and no batch", "512x2048:2048x1024")
        sizes, rest = [sizes[0], second[1], sizes[1]], rest[1:]
    if len(sizes) != 3:
        raise _wrong(parts[0][1], f"a gemm has three sizes, MxNxK, not {len(sizes)}; no batch is read", _GEMM_RIGHT)
    m, n, k = sizes
    dtype, layout = _suffixes(rest, layouts=True)
    return Gemm(m=m, n=n, k=k, trans_a=layout[0] == "t", trans_b=layout[1] == "t", dtype=dtype)


def _dimensions(part: str, at: int) -> list[int]:
    """The numbers between the x."""
    sizes = []
    for digits in part.rstrip("_").split("x"):
        if not re.fullmatch(r"[0-9]+", digits, re.ASCII):
            raise _wrong(at, f"{_quote(digits)} is no size: it should be a whole number", _GEMM_RIGHT)
        sizes.append(_number(at, "", digits, least=1))
        at += len(digits) + 1
    return sizes


def _suffixes(parts: Iterable[tuple[str, int]], layouts: bool) -> tuple[str, str]:
    """(dtype, layout), each at most once, in any order."""
    chosen = {"dtype": "", "layout": ""}
    known = [*GEMM_DTYPES, *LAYOUTS] if layouts else [*CONV_DTYPES]
    right = f"{_GEMM_RIGHT}:tn:f16" if layouts else f"{_CONV_RIGHT}:f16"
    for part, at in parts:
        word = part.strip("_")
        if word not in known:
            also = "; a convolution has no layout" if word in LAYOUTS else ""
            also = "; only a matrix product is of this type" if word in GEMM_DTYPES else also
            raise _wrong(at, f"{_quote(word)} is no suffix{also}; {choose(word, known)}", right)
        kind = "dtype" if word in GEMM_DTYPES else "layout"
        if chosen[kind]:
            raise _wrong(at, f'a second {kind} "{word}" after "{chosen[kind]}"', right)
        chosen[kind] = word
    return chosen["dtype"] or "f32", chosen["layout"] or "nn"


def resolve(specs: Sequence[str], read_model: Callable[[Path], Iterable[Layer]] | None = None) -> list[Layer]:
    """The layers that words name, in order: a problem, a built-in set, `@file` (one problem a line) or a `.onnx` model.

    A set may be of another batch and type: `resnet50:mb32:f16`.

    `read_model` reads the models; this module knows no model format. Raises ProblemError for a word that is none of
    these and for what a text or file has wrong.
    """
    layers: list[Layer] = []
    for spec in [specs] if isinstance(specs, str) else specs:
        word = spec.strip()
        if word.startswith(("conv:", "gemm:")):
            layers.append(_parse(word))
        elif word.startswith("@"):
            layers += _read_lines(Path(word[1:]))
        elif word.endswith(".onnx"):
            if read_model is None:
                raise ProblemError(f"{_quote(word)}: no reader of .onnx models was given here")
            layers += read_model(Path(word))
        elif (name := word.partition(":")[0]) in sets():
            layers += [_changed(layer, word) for layer in _shipped(name)]
        else:
            raise ProblemError(_no_such_word(word))
    return layers


def _changed(layer: Layer, word: str) -> Layer:
    """A built-in set's layer with what the set's word asks: `:mb32` of convolutions, `:f16` of all."""
    workload = layer.workload
    for asked in word.split(":")[1:]:
        batch, known = re.fullmatch(r"mb([0-9]{1,9})", asked), CONV_DTYPES if isinstance(workload, Conv) else GEMM_DTYPES
        if batch and int(batch[1]) and isinstance(workload, Conv):
            workload = msgspec.structs.replace(workload, batch=int(batch[1]))
        elif asked in known:
            workload = msgspec.structs.replace(workload, dtype=asked)
        elif not batch or not int(batch[1]):
            raise ProblemError(f"{_quote(word)}: {_quote(asked)} is no batch (mb32) and no type ({', '.join(known)})")
        else:
            raise ProblemError(f"{_quote(word)} has matrix products, whose sizes have no batch; write them out: gemm:MxNxK")
    return layer._replace(workload=workload)


def _no_such_word(word: str) -> str:
    try:
        return f'{_quote(word)} lacks its "conv:" or "gemm:"; did you mean "{_parse(word, bare=True).workload.text}"?'
    except ProblemError:
        forms = f"a problem is written {_CONV_RIGHT} or {_GEMM_RIGHT}, a list @file, a model NAME.onnx"
        return f"{_quote(word)} names no built-in set; {choose(word.lower(), sets())}; {forms}"


def sets() -> list[str]:
    """The built-in sets, by name."""
    return sorted(path.stem for path in SHIPPED.glob("*.txt"))


@cache
def _shipped(name: str) -> tuple[Layer, ...]:
    return tuple(_read_lines(SHIPPED / f"{name}.txt"))


def _read_lines(path: Path) -> list[Layer]:
    """One layer a line, benchdnn's bare lines too; `#` begins a comment."""
    try:
        lines = read_text(path, _MAX_FILE_BYTES).splitlines()
    except ProblemError as error:
        raise ProblemError(f"{error}; @file names a list with one problem a line") from None
    layers = []
    for number, line in enumerate(lines, start=1):
        match = _LINE.match(line.strip())
        if match and not match[1]:
            continue
        try:
            layers.append(_parse(match[1] if match else line, bare=True))
        except ProblemError as error:
            raise ProblemError(f"{path}, line {number}: {error}") from None
    if not layers:
        raise ProblemError(f"{_quote(str(path))} holds no problem; each line should hold one such as {_CONV_RIGHT}")
    return layers


def distinct(layers: Iterable[Layer]) -> list[Layer]:
    """Each problem once, in the order of first appearance, with its first label and its counts added."""
    merged: dict[Workload, Layer] = {}
    for layer in layers:
        first = merged.get(layer.workload)
        merged[layer.workload] = first._replace(count=first.count + layer.count) if first else layer
    return list(merged.values())


def _quote(value: object) -> str:
    """For a message: a text in ASCII, cut where it is long, and of anything else its type."""
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    return ascii(value) if len(value) <= 120 else ascii(value[:120]) + "..."
