# SPDX-License-Identifier: Apache-2.0
"""Problems as text: one word each, lists of them, and the built-in sets.

The text is benchdnn's grammar (oneDNN, `tests/benchdnn/doc/driver_conv.md`): `dh` is the dilation less one, and the bottom padding
follows from `oh`. A convolution with `id` and `kd` is of volumes; one with `iw` and `kw` alone is of sequences, images of one row.
`deconv:` is a transposed convolution, read as the convolution of its phases (`pysim.problem.transposed`).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from pysim.errors import ProblemError, choose
from pysim.file_io import read_text
from pysim.problem.conv import Axis, Conv
from pysim.problem.dtypes import CONV_DTYPES, GEMM_DTYPES, TABLE
from pysim.problem.fields import INT64_MAX, quote
from pysim.problem.gemm import LAYOUTS, Gemm
from pysim.problem.transposed import transposed

SHIPPED = Path(__file__).parent / "sets"

_SIZES = {"g": "groups", "mb": "batch", "ic": "channels", "oc": "filters", "ih": "height", "iw": "width"}
_SIZES |= {"kh": "kernel_h", "kw": "kernel_w", "sh": "stride_h", "sw": "stride_w"}
_SIZES |= {"id": "depth", "kd": "kernel_d", "sd": "stride_d"}
_FROM_ZERO = ("ph", "pw", "dh", "dw", "pd", "dd")
_FIELDS = (*_SIZES, "oh", "ow", "od", *_FROM_ZERO)
_KINDS = ("conv:", "deconv:", "gemm:")
_CONV_RIGHT = "conv:mb1ic64ih56oc64kh3ph1"
_GEMM_RIGHT = "gemm:512x2048x1024"
_TOKEN = re.compile(r"(?P<name>[a-z]+)(?P<digits>[0-9]*)|_+|(?P<other>.)", re.ASCII | re.DOTALL)
_QUOTED_LABEL = re.compile(r'_?n"([^"\r\n]*)"')
_LABEL_END = re.compile(r"[^A-Za-z0-9_./*+-]")  # characters that end a label without quotes
_LINE = re.compile(r'((?:[^\s#"]|"[^"]*")*)(?:\s*|\s+#.*|#.*)$')
_TYPES_ELSEWHERE = {name.lower(): one.name for one in TABLE for name in (one.array, one.onnx) if name}
_TYPES_ELSEWHERE |= {"fp16": "f16", "half": "f16", "fp32": "f32", "fp64": "f64", "i8": "s8", "fp8": "f8"}
_MAX_FILE_BYTES = 1 << 20  # of a list: 25,000 problems or more


Workload = Conv | Gemm


class Layer(NamedTuple):
    """A problem, its label in the source, and how often it occurs there."""

    workload: Workload
    label: str = ""
    count: int = 1  # type: ignore[assignment]  # the field hides tuple.count, which is useless here


def parse(text: str | Workload) -> Workload:
    """The problem of a text such as `conv:mb1ic64ih56oc64kh3ph1` or `gemm:512x2048x1024:tn:f16` (M x N x K); a problem stays as is.

    A label is dropped. Raises ProblemError, which names the field, its character (from 1) and a right example.
    """
    return text if isinstance(text, Conv | Gemm) else (_kept if isinstance(text, str) else _parse)(text).workload


def _parse(text: str, bare: bool = False) -> Layer:
    """A problem with its label. `bare` allows benchdnn's own lines, which have no `conv:` or `gemm:` before them."""
    if not isinstance(text, str):
        raise ProblemError(f"a problem is a text such as {_CONV_RIGHT}, not {quote(text)}")
    text = text.strip()
    label, masked = "", text
    if matched := _QUOTED_LABEL.search(text):  # overwritten with "_", so that positions stay
        label, masked = matched[1], text[: matched.start()] + "_" * len(matched[0]) + text[matched.end() :]
    try:
        kind, parts = _split(masked, bare)
        if kind == "gemm":
            return Layer(_parse_gemm(parts), label)
        descriptor, start = parts[0]
        last = max((matched.end() for matched in _LABEL_END.finditer(descriptor)), default=0)
        if (at := descriptor.find("n", last)) >= 0:
            label, parts[0] = label or descriptor[at + 1 :], (descriptor[:at], start)
        problem = _parse_conv(parts, kind == "deconv")
        return Layer(problem, label or masked.strip("_") * (kind == "deconv"))
    except ProblemError as error:
        raise ProblemError(f"{quote(text)}: {error}") from None


def _split(text: str, bare: bool) -> tuple[str, list[tuple[str, int]]]:
    """The kind, and the parts between the colons after it, each with its position in the text."""
    kind = text.partition(":")[0]
    at = len(kind) + 1
    if not text.startswith(_KINDS):
        several = "a built-in set" if kind in sets() else "a model, which pysim.load runs," if kind.endswith(".onnx") else ""
        if not bare and several:
            raise _wrong(0, f"{several} has several problems, and one is expected here", f"{_CONV_RIGHT} or {_GEMM_RIGHT}")
        if not bare or not re.match(r"[a-z0-9]", text):
            raise _wrong(0, 'a problem begins with "conv:", "deconv:" or "gemm:"', f"{_CONV_RIGHT} or {_GEMM_RIGHT}")
        kind, at = "gemm" if text[0].isdigit() else "conv", 0
    parts = []
    for part in text[at:].split(":"):
        parts.append((part, at))
        at += len(part) + 1
    return kind, parts


def _wrong(at: int, what: str, right: str = _CONV_RIGHT) -> ProblemError:
    return ProblemError(f"character {at + 1}: {what}; expected e.g. {right}")


_kept = lru_cache(maxsize=256)(_parse)


def _parse_conv(parts: list[tuple[str, int]], is_transposed: bool) -> Conv:
    descriptor, start = parts[0]
    fields = _conv_fields(descriptor, start)
    dtype, _ = _suffixes(parts[1:], layouts=False)
    counts = {name: number for name, (number, _) in fields.items()}
    axes = _axes(fields, start + len(descriptor), _cut if is_transposed else _padded)
    batch, channels, filters, groups = counts.get("mb", 1), counts["ic"], counts["oc"], counts.get("g", 1)
    if is_transposed:
        sizes, kernel, strides, dilations, pads, outs = map(list, zip(*map(msgspec.structs.astuple, axes), strict=True))
        return transposed(batch, channels, sizes, filters, kernel, strides, dilations, pads, outs, groups, dtype).problem
    slices, rows, columns = axes
    return Conv(
        batch=batch, channels=channels, filters=filters, groups=groups, dtype=dtype,
        depth=slices.size, height=rows.size, width=columns.size,
        kernel_d=slices.kernel, kernel_h=rows.kernel, kernel_w=columns.kernel,
        stride_d=slices.stride, stride_h=rows.stride, stride_w=columns.stride,
        dilation_d=slices.dilation, dilation_h=rows.dilation, dilation_w=columns.dilation,
        pad_front=slices.before, pad_top=rows.before, pad_left=columns.before,
        pad_back=slices.after, pad_bottom=rows.after, pad_right=columns.after,
    )  # fmt: skip


def _axes(
    fields: Mapping[str, tuple[int, int]], end: int, complete: Callable[[str, Axis, int | None, int | None, int], Axis]
) -> list[Axis]:
    """Depth, height and width, with padding by `complete`. An axis without fields is like the one before it, or has one element if there
    is none before it. A width with a size and a kernel of its own has all its fields, as in benchdnn; of another, fields that are left out
    copy the height's."""
    given = {
        along: {name[0]: number for name, (number, _) in fields.items() if name[0] in "iksdpo" and name[1:] == along} for along in "dhw"
    }
    sequence = given["w"] and not given["d"] and not given["h"]
    needed = ["ic", "iw", "oc", "kw"] if sequence else ["ic", "ih", "oc", "kh"] if given["h"] or not given["d"] else ["ic", "oc"]
    for name in (*needed, *["id", "kd"] * bool(given["d"])):
        if name not in fields:
            raise _wrong(end, f'the field "{name}" ({_SIZES[name]}) is missing')
    axes: list[Axis] = []
    before: dict[str, int] = {}  # the fields of the axis before
    for along, own in given.items():
        if not own and not before:
            axes.append(complete("", Axis(1, 1, 1, 1), None, None, end))
            continue
        copies = not own or (along == "w" and not {"i", "k"} <= own.keys())
        sizes = {"s": 1, "d": 0} | (before if copies else {}) | own
        axis, pad = Axis(sizes["i"], sizes["k"], sizes["s"], sizes["d"] + 1), sizes.get("p")
        alike = {**before, "o": 0} == {**sizes, "o": 0}
        out = own.get("o", before.get("o") if alike else None)
        axes.append(complete(f"o{along}", axis, pad, out, fields.get(f"o{along}", (0, end))[1]))
        before = {name: number for name, number in sizes.items() if name != "o"} | ({} if out is None else {"o": out})
    return axes


def _cut(field: str, axis: Axis, before: int | None, out: int | None, at: int) -> Axis:
    """An axis of a transposed convolution: `before` outputs are cut off at the beginning, and `after` is the number that remains."""
    whole = (axis.size - 1) * axis.stride + axis.extent
    if before is None:
        before = 0 if out is None else max(0, whole - out) // 2
    return msgspec.structs.replace(axis, before=before, after=whole - 2 * before if out is None else out)


def _padded(field: str, axis: Axis, before: int | None, out: int | None, at: int) -> Axis:
    """The axis with its padding: symmetric unless `out` requires otherwise; without `before`, half of what `out` needs."""
    if out is None:
        return msgspec.structs.replace(axis, before=before or 0, after=before or 0)
    if before is None:
        before = max(0, (out - 1) * axis.stride + axis.extent - axis.size) // 2
    axis = msgspec.structs.replace(axis, before=before)
    if out < axis.out:
        what = f"{field}{out} cannot be: even without padding at the end it is {axis.out}"
        raise _wrong(at, what, f"{field}{msgspec.structs.replace(axis, after=before).out}, padded alike on both sides")
    return msgspec.structs.replace(axis, after=axis.ending(out))


def _conv_fields(descriptor: str, start: int) -> dict[str, tuple[int, int]]:
    """Field name -> (number, position in the text)."""
    fields: dict[str, tuple[int, int]] = {}
    for token in _TOKEN.finditer(descriptor):
        name, digits, at = token["name"], token["digits"], start + token.start()
        if token["other"]:
            raise _wrong(at, f"{quote(token['other'])} stands where a field should begin")
        if not name:
            continue
        if name not in _FIELDS:
            raise _wrong(at, f"{quote(name)} is not a field; {choose(name, _FIELDS)}")
        if name in fields:
            raise _wrong(at, f'the field "{name}" stands twice')
        if not digits:
            raise _wrong(start + token.end(), f'the field "{name}" has no number')
        fields[name] = (_number(at, name, digits, least=0 if name in _FROM_ZERO else 1), at)
    return fields


def _number(at: int, name: str, digits: str, least: int) -> int:
    significant = digits.lstrip("0") or "0"  # int() refuses thousands of digits
    if len(significant) > 19 or int(significant) > INT64_MAX:
        raise _wrong(at, f"{quote(name + digits)} is too large", f"{name}{INT64_MAX} at most")
    if int(significant) < least:
        raise _wrong(at, f"{quote(name + digits)} is too small", f"{name}{least}")
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
            raise _wrong(at, f"{quote(digits)} is not a size: it should be a whole number", _GEMM_RIGHT)
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
            raise _wrong(at, f"{quote(word)} is not a suffix{also}; {choose(_TYPES_ELSEWHERE.get(word.lower(), word), known)}", right)
        kind = "dtype" if word in GEMM_DTYPES else "layout"
        if chosen[kind]:
            raise _wrong(at, f'a second {kind} "{word}" after "{chosen[kind]}"', right)
        chosen[kind] = word
    return chosen["dtype"] or "f32", chosen["layout"] or "nn"


class ModelFile(NamedTuple):
    """A model's file and the requested batch, if any."""

    path: Path
    batch: int | None = None


def model_file(word: str) -> ModelFile | None:
    """The file and batch of `model.onnx` or `model.onnx:mb4`; None for other words, ProblemError for a model with another suffix."""
    if word.endswith(".onnx"):
        return ModelFile(Path(word))
    path, dot, suffixes = word.rpartition(".onnx:")
    if not dot:
        return None
    batch = re.fullmatch(r"mb([0-9]{1,9})", suffixes, re.ASCII)
    if not batch or not int(batch[1]):
        raise ProblemError(f"{quote(word)}: {quote(suffixes)} is not a batch; expected e.g. {path}.onnx:mb4")
    return ModelFile(Path(f"{path}.onnx"), int(batch[1]))


def resolve(specs: Sequence[str], read_model: Callable[[ModelFile], Iterable[Layer]] | None = None) -> list[Layer]:
    """The layers that words name, in order: a problem, a built-in set, `@file` (one problem a line) or a `.onnx` model.

    A suffix changes a set's batch and type (`resnet50:mb32:f16`) or a model's batch (`model.onnx:mb4`).

    `read_model` reads the models; this module knows no model format. Raises ProblemError for any other word and for
    errors in a text or file.
    """
    layers: list[Layer] = []
    for spec in [specs] if isinstance(specs, str) else specs:
        if not isinstance(spec, str):
            raise ProblemError(f"{quote(spec)} names no problem; expected a text such as {_CONV_RIGHT}, a set, @file or model.onnx")
        word = spec.strip()
        if word.startswith(_KINDS):
            layers.append(_parse(word))
        elif word.startswith("@"):
            if word == "@":
                raise ProblemError("@ names no file; expected @layers.txt, a file with one problem a line")
            layers += _read_lines(Path(word[1:]))
        elif (model := model_file(word)) is not None:
            if read_model is None:
                raise ProblemError(f"{quote(word)}: no reader of .onnx models was given here")
            layers += read_model(model)
        elif (name := word.partition(":")[0]) in sets():
            layers += [_changed(layer, word) for layer in _shipped(name)]
        else:
            raise ProblemError(_no_such_word(word))
    return layers


def _changed(layer: Layer, word: str) -> Layer:
    """A built-in set's layer with the suffixes of the set's word: `:mb32` (convolutions only), `:f16` (all)."""
    workload = layer.workload
    for suffix in word.split(":")[1:]:
        batch, known = re.fullmatch(r"mb([0-9]{1,9})", suffix), CONV_DTYPES if isinstance(workload, Conv) else GEMM_DTYPES
        if batch and int(batch[1]) and isinstance(workload, Conv):
            workload = msgspec.structs.replace(workload, batch=int(batch[1]))
        elif suffix in known:
            workload = msgspec.structs.replace(workload, dtype=suffix)
        elif not batch or not int(batch[1]):
            raise ProblemError(f"{quote(word)}: {quote(suffix)} is neither a batch (mb32) nor a type ({', '.join(known)})")
        else:
            raise ProblemError(f"{quote(word)} has matrix products, whose sizes have no batch; write them out: gemm:MxNxK")
    return layer._replace(workload=workload)


def _no_such_word(word: str) -> str:
    try:
        return f'{quote(word)} lacks its "conv:" or "gemm:"; did you mean "{_parse(word, bare=True).workload.text}"?'
    except ProblemError:
        forms = f"a problem is written {_CONV_RIGHT} or {_GEMM_RIGHT}, a list @file, a model NAME.onnx"
        return f"{quote(word)} names no built-in set; {choose(word.lower(), sets())}; {forms}"


def sets() -> list[str]:
    """The built-in sets, by name."""
    return sorted(path.stem for path in SHIPPED.glob("*.txt"))


def line_of(word: str) -> str:
    """A benchdnn line as it stands, transposed ones too; of SET:NUMBER, a built-in set's layer of that number from 0, without its label."""
    name, _, number = word.partition(":")
    if not number.isdigit():
        return word
    lines = [line for line in read_text(SHIPPED / f"{name}.txt", _MAX_FILE_BYTES).splitlines() if not line.startswith("#")]
    return lines[int(number)].partition("_n")[0]


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
            is_set = line.strip().partition(":")[0] in sets()
            fault = f"{quote(line.strip())} is a built-in set; a list has problems alone, such as {_CONV_RIGHT}" if is_set else error
            raise ProblemError(f"{path}, line {number}: {fault}") from None
    if not layers:
        raise ProblemError(f"{quote(str(path))} holds no problem; each line should hold one such as {_CONV_RIGHT}")
    return layers


def distinct(layers: Iterable[Layer]) -> list[Layer]:
    """Each problem once, in the order of first appearance, with its first label and its counts added."""
    merged: dict[Workload, Layer] = {}
    for layer in layers:
        first = merged.get(layer.workload)
        merged[layer.workload] = first._replace(count=first.count + layer.count) if first else layer
    return list(merged.values())
