# SPDX-License-Identifier: Apache-2.0
"""Converts sparse constants of ONNX models to dense ones, so that readers here and in ONNX Runtime see only one kind."""

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from pysim.errors import ProblemError, printable
from pysim.onnx.branches import graphs_of

if TYPE_CHECKING:
    import onnx

_MOST_BYTES = 1 << 31


def make_dense(graph: "onnx.GraphProto", model: str) -> None:
    """Converts a graph and its subgraphs in place; ProblemError for a constant with indices out of range."""
    import onnx

    for sparse in graph.sparse_initializer:
        name = printable(sparse.values.name)
        try:
            values, places = (onnx.numpy_helper.to_array(one) for one in (sparse.values, sparse.indices))
            if prod(sparse.dims) * values.itemsize > _MOST_BYTES:
                raise ValueError(f"it would take more than {_MOST_BYTES:,} bytes")
            array = np.zeros(tuple(sparse.dims), values.dtype)
            flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), array.shape)
            if flat.size and flat.min() < 0:
                raise ValueError("an index is below 0")
            array.reshape(-1)[flat] = values
        except Exception as error:  # incomplete data
            raise ProblemError(f'{model}: the sparse constant "{name}" cannot be read: {error}') from None
        graph.initializer.append(onnx.numpy_helper.from_array(array, sparse.values.name))
    del graph.sparse_initializer[:]
    for node in graph.node:
        for inner in graphs_of(node):
            make_dense(inner, model)
