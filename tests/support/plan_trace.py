# SPDX-License-Identifier: Apache-2.0
"""Traces of schedules as arrays, where the product only counts what they do to caches."""

from typing import Any

import numpy as np

from pysim.cachemodel.simulator import trace
from pysim.cachemodel.simulator.hierarchy import Chunk
from pysim.problem.text import Workload
from pysim.record.schedule import Schedule
from pysim.runtime import cpu as runtime


def accesses(workload: Workload, schedule: Schedule, at: trace.Bases | None = None) -> list[Chunk]:
    """One run of a schedule in chunks: int64 addresses, int32 sizes in bytes, uint8 stores and tags. Errors are those of
    `trace.simulate`."""
    return recorded([trace.run_of(workload, schedule, at or trace.bases(workload, schedule))])


def recorded(runs: list[trace.Run]) -> list[Chunk]:
    """What native runs touch, noted by the functions that make their traces."""
    ffi, lib = runtime.library()
    noting = {lib.pysim_simulate: lib.pysim_trace, lib.pysim_im2col_simulate: lib.pysim_im2col_trace}
    chunks: list[Chunk] = []

    def note(_: Any, n: int, *columns: Any) -> None:
        kinds = map(np.dtype, (np.int64, np.int32, np.uint8, np.uint8))
        chunks.append(
            Chunk(*(np.frombuffer(ffi.buffer(at, n * kind.itemsize), kind).copy() for at, kind in zip(columns, kinds, strict=True)))
        )

    sink = ffi.callback("void(void *, int64_t, int64_t *, int32_t *, uint8_t *, uint8_t *)", note)
    for run in runs:
        runtime.check(noting[run.simulate](*run.arguments, sink, ffi.NULL))
    return chunks
