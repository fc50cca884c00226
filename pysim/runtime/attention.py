# SPDX-License-Identifier: Apache-2.0
"""Attention on a CPU (`native/operators/attention.c`) as a step bound to its arrays."""

from typing import Any

import numpy as np

from pysim.runtime.array_steps import merged_axes
from pysim.runtime.cpu import Array, library
from pysim.runtime.integer_steps import Quantity
from pysim.runtime.operators import NATIVE_DTYPES
from pysim.runtime.steps import Step, WorkingStep

_HEAD_AXES, _MOST_BYTES = 4, 1 << 15


def attention_step(
    out: Array,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    alpha: float = 1.0,
    zero_rows: bool = False,
    of: tuple[Quantity, Quantity] | None = None,
    narrow: bool = False,
) -> Step | None:
    """out = softmax(alpha q k + mask) v over the last two axes, where k is [..., size, keys]; the other axes are heads. With zero_rows a
    row whose shares are NaN is 0. `of`: what q and k stand for if they are bytes. `narrow`: q, k, v and shares of float32 are rounded to
    bf16 before they are multiplied. None if these arrays are unsupported."""
    arrays = [q, k, v, out, *([] if mask is None else [mask])]
    dtypes = [*((x.dtype for x in of) if of else [out.dtype] * 2), *[out.dtype] * (len(arrays) - 2)]
    if out.dtype not in NATIVE_DTYPES or (of and (narrow or out.dtype != np.float32 or q.shape[-1] > _MOST_BYTES)):
        return None
    if any(x.dtype != dtype or not x.size or min(x.strides) < 0 for x, dtype in zip(arrays, dtypes, strict=True)):
        return None
    heads, (rows, size), keys, width = out.shape[:-2], q.shape[-2:], k.shape[-1], v.shape[-1]
    seen = [np.broadcast_to(x, (*heads, *x.shape[-2:])) for x in (q, k, v)]
    added = out if mask is None else np.broadcast_to(mask, (*heads, rows, keys))
    of_q, of_k, of_v, of_m, of_y = (tuple(by // x.dtype.itemsize for by in x.strides[-2:]) for x in (*seen, added, out))
    axes = merged_axes(heads, *(x[..., 0, 0] for x in (*seen, added, out)))
    contiguous = all(steps[1] == 1 or x.shape[-1] == 1 for steps, x in ((of_q, q), (of_v, v), (of_y, out)))
    if not contiguous or 1 not in of_k or len(axes) > _HEAD_AXES or any(one[-1] < 1 for one in axes):
        return None
    ffi, lib = library()
    counts, *steps = ([*column] for column in zip(*axes, strict=True))
    pointer = [ffi.cast("void *", x.ctypes.data) for x in (q, k, v, out)]
    about: dict[str, Any] = dict(zip(("q_steps", "k_steps", "v_steps", "m_steps", "y_steps"), steps, strict=True))
    about |= {"rows": rows, "keys": keys, "size": size, "width": width, "counts": counts, "axes": len(axes)}
    about |= {"q_row": of_q[0], "k_row": of_k[1], "k_step": of_k[0], "v_row": of_v[0], "y_row": of_y[0]}
    about |= {"alpha": alpha, "zero_rows": zero_rows, "dtype": lib.PYSIM_BF16 if narrow else getattr(lib, NATIVE_DTYPES[out.dtype])}
    if of:
        about |= {name: [one.scale, one.zero, one.dtype == np.int8] for name, one in zip(("q_of", "k_of"), of, strict=True)}
    if mask is not None:
        about |= {"m_row": of_m[0], "m_step": of_m[1], "mask": ffi.cast("void *", mask.ctypes.data)}
    how = ffi.new("pysim_attention *", about)
    step = WorkingStep("ATTENTION", of=how, first=pointer[0], second=pointer[1], third=pointer[2], result=pointer[3])
    step.keep(q, k, v, out, mask)
    step.elsewhere = [(how, "mask")]
    return step
