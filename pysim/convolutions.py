# SPDX-License-Identifier: Apache-2.0
"""Convolutions of sequences and volumes, and transposed convolutions, by the plans of `pysim.api.conv2d`.

A sequence is an image of one row, a volume has a depth of its own, and a transposed convolution is the convolution of its phases
(`pysim.problem.transposed`). Arguments and errors are those of `conv2d`; those that it has beyond the ones named here, such as `machine`
and `accuracy`, may be given by name.

Worked number: x of 1 x 64 x 100 and w of 64 x 32 x 4, a transposed convolution of stride 2 and padding 1, give 1 x 32 x 200.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pysim.api import convolved
from pysim.arguments import whole, wholes
from pysim.errors import OperandError, ProblemError
from pysim.problem.dtypes import SIZES
from pysim.problem.transposed import Transposed, transposed
from pysim.problem.windows import Pair, Windows
from pysim.runtime import arrays
from pysim.runtime import cpu as runtime
from pysim.runtime.cuda import interleave

_AXES = {1: "(width)", 2: "(height, width)", 3: "(depth, height, width)"}
_SHAPES = {1: ("[N][C][W]", "[S]"), 2: ("[N][C][H][W]", "[R][S]"), 3: ("[N][C][D][H][W]", "[T][R][S]")}


def conv1d(
    x: Any, w: Any, bias: Any = None, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1, groups: int = 1, **options: Any
) -> Any:
    """y[N][M][Q] = act(x[N][C][W] * w[M][C/groups][S] + bias[M] + residual[N][M][Q]). `padding`: one number or (left, right)."""
    shape, taps = _checked(x, w, 1)
    (across,), (apart,) = wholes(stride, "stride", 1, (1,), _AXES[1]), wholes(dilation, "dilation", 1, (1,), _AXES[1])
    pads = wholes(padding, "padding", 0, (1, 2), "(width) or (left, right)")
    windows = Windows((1, across), (0, pads[0], 0, pads[-1]), (1, apart), whole(groups, "groups", 1))
    views = {name: _with_axis(options[name], name) for name in ("out", "residual") if options.get(name) is not None}
    y = convolved(_reshaped(x, (*shape[:2], 1, *shape[2:])), _reshaped(w, (*taps[:2], 1, *taps[2:])), bias, windows, **options | views)
    return options["out"] if "out" in views else _reshaped(y, (*y.shape[:2], *y.shape[3:]))


def conv1d_stream(
    x: Any, w: Any, bias: Any = None, state: Any = None, dilation: Pair = 1, groups: int = 1, **options: Any
) -> tuple[Any, Any]:
    """(y, state): the causal convolution of a sequence that comes in pieces. y[N][M][q] reads columns up to q of x[N][C][W] and, before
    these, of `state`[N][C][dilation (S - 1)], the last columns of the pieces before; None stands for zeros. Pass the state that is
    returned, an array of its own, with the next piece, of any length. y[N][M][W] may differ in last bits from that of the sequence in one
    piece. Takes no out, residual, plan or layout."""
    _take_none("a convolution of pieces", options)
    shape, taps = _checked(x, w, 1)
    (apart,) = wholes(dilation, "dilation", 1, (1,), _AXES[1])
    before, columns = apart * (taps[2] - 1), shape[2]
    if state is not None and tuple(np.shape(state)) != (*shape[:2], before):
        raise OperandError(f"state has shape {tuple(np.shape(state))}; expected [N][C][dilation (S - 1)], {(*shape[:2], before)}")
    arrays.refuse_gradients(x=x, w=w, bias=bias, state=state)
    on_gpu = arrays.is_cuda(x)
    image, past = (x, state) if on_gpu else (runtime.as_numpy(x, "x"), None if state is None else runtime.as_numpy(state, "state"))
    if past is not None and past.dtype != image.dtype:
        raise OperandError(f"state is {past.dtype}, but x is {image.dtype}; expected the same")
    how = {"dilation": apart, "groups": groups, **options}
    last = on_gpu and "nchw" not in arrays.lying(arrays.view(x, "x", arrays.library_of(type(x)).stream(x)))
    y: Any = conv1d(image, w, bias, padding=(before, 0), **how) if past is None or columns > before else None
    if past is not None and before:  # the outputs that the state reaches
        first = conv1d(_columns(image, past, before, range(before + min(before, columns)), last), w, bias, **how)
        if y is None:
            y = first
        else:
            y[..., :before] = first
    kept = _columns(image, past, before, range(columns, columns + before), last)
    return (y, kept) if on_gpu else (runtime.like(x, y), _state_like(x, kept))


def _state_like(x: Any, state: Any) -> Any:
    """The state as an array of the library of x; NumPy's DLPack carries bfloat16's bits alone."""
    if isinstance(x, np.ndarray) or state.dtype.name != "bfloat16":
        return runtime.like(x, state)
    return runtime.like(x, state.view(np.int16)).view(x.dtype)


def _columns(x: Any, state: Any, before: int, which: range, channels_last: bool) -> Any:
    """Some of the columns of the state, which are `before`, and of x behind them, in an array of its own, on x's device."""
    sizes = *x.shape[:2], len(which)
    if isinstance(x, np.ndarray):
        made = np.empty(sizes, x.dtype)
    else:
        library = arrays.library_of(type(x))
        made = library.moves(x).empty([sizes[axis] for axis in arrays.permuted(3)] if channels_last else sizes, dtype=x.dtype)
        made = library.channels_second(made) if channels_last else made
    split = min(len(which), max(0, before - which.start))
    made[..., :split] = 0 if state is None else state[..., which.start : which.start + split]
    made[..., split:] = x[..., which.start + split - before : which.stop - before]
    return made


def conv3d(
    x: Any, w: Any, bias: Any = None, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1, groups: int = 1, **options: Any
) -> Any:
    """y[N][M][O][P][Q] = act(x[N][C][D][H][W] * w[M][C/groups][T][R][S] + bias[M] + residual[N][M][O][P][Q]). `padding`: one number,
    (depth, height, width) or (front, top, left, back, bottom, right)."""
    shape, taps = _checked(x, w, 3)
    windows = Windows.of(stride, padding, dilation, groups, 3)
    if shape[2] != 1 or taps[2] != 1 or windows.padding[0] or windows.padding[3]:
        return convolved(x, w, bias, windows, **options)
    flat = Windows(windows.stride[1:], (*windows.padding[1:3], *windows.padding[4:]), windows.dilation[1:], windows.groups)
    views = {name: _without_depth(options[name], name) for name in ("out", "residual") if options.get(name) is not None}
    y = convolved(_reshaped(x, (*shape[:2], *shape[3:])), _reshaped(w, (*taps[:2], *taps[3:])), bias, flat, **options | views)
    return options["out"] if "out" in views else _reshaped(y, (*y.shape[:2], 1, *y.shape[2:]))


def conv_transpose1d(
    x: Any, w: Any, bias: Any = None, stride: Pair = 1, padding: Pair = 0, output_padding: Pair = 0, groups: int = 1, dilation: Pair = 1,
    **options: Any,
) -> Any:  # fmt: skip
    """y[N][M][Q], x[N][C][W], w[C][M/groups][S], as PyTorch's: Q = (W - 1) stride - 2 padding + dilation (S - 1) + output_padding + 1.
    `padding`: one number or (left, right)."""
    return _transposed(x, w, bias, (stride, padding, output_padding, dilation), groups, 1, options)


def conv_transpose2d(
    x: Any, w: Any, bias: Any = None, stride: Pair = 1, padding: Pair = 0, output_padding: Pair = 0, groups: int = 1, dilation: Pair = 1,
    **options: Any,
) -> Any:  # fmt: skip
    """y[N][M][P][Q], x[N][C][H][W], w[C][M/groups][R][S], as PyTorch's. `padding`: one number, one for each axis, or all at the beginning
    and then all at the end."""
    return _transposed(x, w, bias, (stride, padding, output_padding, dilation), groups, 2, options)


def conv_transpose3d(
    x: Any, w: Any, bias: Any = None, stride: Pair = 1, padding: Pair = 0, output_padding: Pair = 0, groups: int = 1, dilation: Pair = 1,
    **options: Any,
) -> Any:  # fmt: skip
    """y[N][M][O][P][Q], x[N][C][D][H][W], w[C][M/groups][T][R][S], as PyTorch's. `padding` as in `conv_transpose2d`."""
    return _transposed(x, w, bias, (stride, padding, output_padding, dilation), groups, 3, options)


def _transposed(
    x: Any, w: Any, bias: Any, arguments: tuple[Pair, Pair, Pair, Pair], groups: int, rank: int, options: dict[str, Any]
) -> Any:
    _take_none("a transposed convolution", options)
    arrays.refuse_gradients(x=x, w=w, bias=bias)
    if arrays.is_cuda(x):
        return _transposed_on_gpu(x, w, bias, arguments, groups, rank, options)
    image, filters = runtime.as_numpy(x, "x"), runtime.as_numpy(w, "w")
    how = _phases(image.shape, filters.shape, arguments, whole(groups, "groups", 1), rank, runtime.dtype_of(None, image, filters))
    problem = how.problem
    if bias is not None:
        bias = how.bias(runtime.as_numpy(bias, "bias"))
    y = convolved(image.reshape(problem.input_shape), how.weights(filters), bias, Windows.like(problem), **options)
    return runtime.like(x, np.ascontiguousarray(how.interleaved(y)))


def _take_none(what: str, options: dict[str, Any]) -> None:
    for name in ("out", "residual", "plan", "layout"):
        if options.get(name) is not None:
            raise OperandError(f"{name} is given; {what} takes none")


def _transposed_on_gpu(
    x: Any, w: Any, bias: Any, arguments: tuple[Pair, Pair, Pair, Pair], groups: int, rank: int, options: dict[str, Any]
) -> Any:
    """The same on a device, in the layout of x."""
    library = arrays.library_of(type(x))
    stream = library.stream(x)
    seen, filters = arrays.view(x, "x", stream), arrays.view(w, "w", stream)
    how = _phases(seen.shape, filters.shape, arguments, whole(groups, "groups", 1), rank, seen.dtype)
    problem, moves, channels_last = how.problem, library.moves(x), rank > 1 and "nchw" not in arrays.lying(seen)
    if bias is not None:
        bias = how.bias(bias, moves)
    y = convolved(x.reshape(problem.input_shape), how.weights(w, moves), bias, Windows.like(problem), **options)
    order = arrays.permuted(rank + 2) if channels_last else range(rank + 2)
    out = moves.empty([how.output_shape[axis] for axis in order], dtype=y.dtype)
    out = library.channels_second(out) if channels_last else out
    element = SIZES[arrays.view(y, "y", stream).dtype]
    with library.on_device(x):
        lies = library.pointer(y, stream), library.pointer(out, stream)
        interleave(how, "nhwc" if channels_last else "nchw", element, *lies, stream)
    return out


def _phases(x: Sequence[int], w: Sequence[int], arguments: tuple[Pair, Pair, Pair, Pair], groups: int, rank: int, dtype: str) -> Transposed:
    if len(x) != rank + 2 or len(w) != rank + 2:
        raise OperandError(f"x must be {_SHAPES[rank][0]} and w [C][M/groups]{_SHAPES[rank][1]}; their shapes are {(*x,)} and {(*w,)}")
    if w[0] != x[1]:
        raise OperandError(f"w takes {w[0]} channels, but x has {x[1]}")
    names, each = ("stride", "padding", "output_padding", "dilation"), _AXES[rank]
    counts = {"padding": (rank, 2 * rank)}
    least = {"stride": 1, "dilation": 1}
    stride, pads, more, dilation = (
        wholes(value, name, least.get(name, 0), counts.get(name, (rank,)), each) for name, value in zip(names, arguments, strict=True)
    )
    before, after = pads[:rank], pads[-rank:]
    out = []
    for size, kernel, s, d, first, last, extra in zip(x[2:], w[2:], stride, dilation, before, after, more, strict=True):
        if extra >= max(s, d):
            raise OperandError(f"output_padding is {extra}; expected less than the stride {s} or the dilation {d}")
        out.append((size - 1) * s + d * (kernel - 1) + 1 + extra - first - last)
    if min(out) < 1:
        raise ProblemError(f"the padding {pads} leaves no output of {(*x,)} by a kernel of {(*w[2:],)}")
    return transposed(x[0], x[1], x[2:], w[1] * groups, w[2:], stride, dilation, before, out, groups, dtype)


def _checked(x: Any, w: Any, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of x and w."""
    shapes = tuple(np.shape(x)), tuple(np.shape(w))
    if any(len(shape) != rank + 2 for shape in shapes):
        raise OperandError(
            f"x must be {_SHAPES[rank][0]} and w [M][C/groups]{_SHAPES[rank][1]}; their shapes are {shapes[0]} and {shapes[1]}"
        )
    return shapes


def _reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    return (array if hasattr(array, "reshape") else runtime.as_numpy(array, "x")).reshape(shape)


def _with_axis(array: Any, name: str) -> Any:
    """An output or residual of sequences as one of images, in the same memory."""
    shape = tuple(np.shape(array))
    if len(shape) != 3:
        raise OperandError(f"{name} has shape {shape}; expected [N][M][Q]")
    return _reshaped(_contiguous(array, name), (*shape[:2], 1, shape[2]))


def _without_depth(array: Any, name: str) -> Any:
    shape = tuple(np.shape(array))
    if len(shape) != 5 or shape[2] != 1:
        raise OperandError(f"{name} has shape {shape}; expected [N][M][1][P][Q]")
    return _reshaped(_contiguous(array, name), (*shape[:2], *shape[3:]))


def _contiguous(array: Any, name: str) -> Any:
    """The array, which a reshape does not copy."""
    dense = array.is_contiguous() if hasattr(array, "is_contiguous") else runtime.as_numpy(array, name).flags.c_contiguous
    if not dense:
        raise OperandError(f"{name} is not C-contiguous; pass a contiguous copy")
    return array
