# SPDX-License-Identifier: Apache-2.0
"""Digests of a network's results, layer by layer, and where two of them part.

A digest is of a result's numbers in the order of its shape, whatever layout it has in memory. Layers that only convert layouts have none,
because they differ between CPUs, nor have views, whose numbers are those of what they view.

Worked number: 1, 2 and 3 as float32 have the digest 8e628779e6a74ee0.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pysim.errors import OperandError
from pysim.network.graph import Array, Tensor
from pysim.network.plan import Layer
from pysim.record.accuracy import ACCURACIES
from pysim.record.plan import blocked_shape

DIGITS = 16


def digest(x: Array, block: int = 1) -> str:
    """Of an array; with a block, its memory holds the channels in blocks."""
    if block > 1:
        n, _, h, w = x.shape
        x = x.reshape(blocked_shape(x.shape, block)).transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)
    return hashlib.sha256(np.ascontiguousarray(x).tobytes()).hexdigest()[:DIGITS]


def entry(layer: Layer, results: Sequence[Array]) -> dict[str, Any]:
    """A layer of a fingerprint: its node, its contract if it has one, and the digest of each result."""
    block = layer.node.attributes.get("blocks", (1, 1))[1]
    contract = {} if layer.plan is None else {"contract": str(layer.plan.contract)}
    return {"node": layer.node.name, "op": layer.node.op, **contract, "digests": [digest(y, block) for y in results]}


def random_inputs(inputs: Mapping[str, Tensor], seed: int = 0) -> dict[str, Array]:
    """An input of each name: uniform in [-1, 1), or 0 and 1 where it is no floating-point number. Image i is drawn from seed + i, so
    a batch begins with the images of a smaller one."""

    def drawn(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> Array:
        random = np.random.default_rng(seed)
        return (random.uniform(-1, 1, shape) if dtype.kind == "f" else random.integers(0, 2, shape)).astype(dtype)

    return {
        name: np.stack([drawn(one.shape[1:], one.dtype, seed + image) for image in range(one.shape[0])])
        if one.shape
        else drawn((), one.dtype, seed)
        for name, one in inputs.items()
    }


def read(path: str) -> dict[str, Any]:
    """The fingerprint of a file that `--fingerprint --json` wrote; OperandError for any other."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes())["fingerprint"]
        if not isinstance(found["layers"], list) or found["accuracy"] not in ACCURACIES:
            raise TypeError
    except OSError as error:
        raise OperandError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, msgspec.DecodeError):
        raise OperandError(f"{path} is no fingerprint; expected the document that `pysim run MODEL --fingerprint --json` writes") from None
    return dict(found)


def parting(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> str | None:
    """The first layer at which two fingerprints part, as a sentence; None if they are equal."""
    for at, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        try:
            what = f'layer {at}, {one["op"]} "{one["node"]}"'
            if (one["op"], one["node"]) != (other["op"], other["node"]):
                return f'{what}: the other has {other["op"]} "{other["node"]}" there; the models or their fusion differ'
            if one.get("contract") != other.get("contract"):
                return f"{what}: its contract is {one.get('contract')}, the other's {other.get('contract')}"
            if one["digests"] != other["digests"]:
                return f"{what}: its result has the digest {one['digests'][0]}, the other's {other['digests'][0]}"
        except (KeyError, TypeError, IndexError):
            text = f"layer {at} of the other fingerprint has no op, node or digests"
            raise OperandError(f"{text}; expected what `--fingerprint --json` wrote") from None
    if len(ours) != len(theirs):
        return f"one has {len(ours)} layers, the other {len(theirs)}"
    return None
