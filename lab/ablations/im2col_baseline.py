# SPDX-License-Identifier: Apache-2.0
"""The baseline of SConv (arXiv 2303.04739, sections 2.2 and 7): Caffe's im2col, then a matrix product per image and
group. Computes the cost of im2col on one core, and the misses of both phases in exact caches.

An unpadded 1x1 convolution of stride 1 needs no im2col: its product reads the image itself, as in Caffe.

Worked number: 64 channels, 56x56, 3x3: 64 * 9 * 3,136 = 1,806,336 elements, in vectors of 16 rows of 56 that fill 4: 129,024 vectors.
"""

import msgspec
import numpy as np

from pysim.algorithms.cpu.im2col import columns_pass, copy_cycles
from pysim.cachemodel.cpu.cost import Pass, cost_from
from pysim.cachemodel.cpu.nest import nest_of
from pysim.cachemodel.simulator import trace
from pysim.cachemodel.simulator.hierarchy import Hierarchy, Result
from pysim.machine.cpu import Machine
from pysim.problem.conv import Conv
from pysim.problem.dtypes import RESULT_BYTES, SIZES
from pysim.problem.gemm import Gemm
from pysim.record.cost import Cost
from pysim.record.schedule import Schedule


def product_of(w: Conv) -> Gemm:
    """That of one image and group: C[M/g][P*Q] = A[M/g][C/g*R*S] columns[C/g*R*S][P*Q]."""
    depth = w.channels // w.groups * w.kernel_h * w.kernel_w
    return Gemm(m=w.filters // w.groups, n=w.windows, k=depth, dtype=w.dtype)


def columns_cost(w: Conv, machine: Machine, by_element: bool = False) -> Cost:
    """The cost of writing the columns of all images and groups in the machine's widest vectors, without what packing into tiles takes
    besides; or by element, one a cycle, as Caffe's loop with its check of the padding does."""
    if w.pointwise:
        return Cost(0.0, 0.0, "copy", {}, {"copy": 0.0})
    free = {name: msgspec.structs.replace(getattr(machine.core, name), value=0.0) for name in PACKING}
    plain = msgspec.structs.replace(machine, core=msgspec.structs.replace(machine.core, **free))
    packer = max(machine.core.units, key=lambda one: one.vector_bytes)
    made = columns_pass(w, plain, "hot", packer)
    elements = w.channels * w.kernel_h * w.kernel_w * w.batch * nest_of(w).windows
    copy = float(elements) if by_element else copy_cycles(w, plain, packer, prepares=False)
    return cost_from([Pass(machine, {"copy": np.array([copy])}, made.operands, made.moved)])


PACKING = "pack_cycles", "pack_call_cycles", "pack_line_cycles"


def simulate(w: Conv, schedule: Schedule, hierarchy: Hierarchy, *, warm: bool = False, flush: bool = False) -> Result:
    """Counts of it: for each image the columns of all its channels, then `product_of(w)` under `schedule` by group; `warm`, `flush` and
    errors as of `trace.simulate`."""
    return trace.simulate_runs(runs_of(w, schedule), hierarchy, warm=warm, flush=flush)


def runs_of(w: Conv, schedule: Schedule) -> list[trace.Run]:
    """The baseline's steps; all images use one columns matrix."""
    from pysim.runtime import cpu as runtime

    ffi, lib = runtime.library()
    gemm, element, result = product_of(w), SIZES[w.dtype], RESULT_BYTES[w.dtype]
    image_bytes = w.channels * w.height * w.width * element
    size = ffi.new("int64_t *")
    runtime.check(lib.pysim_workspace_bytes(runtime.problem_struct(gemm), runtime.schedule_struct(schedule, gemm), 1, size))
    of_a, of_b, of_c = gemm.m * gemm.k * element, gemm.k * gemm.n * element, gemm.m * gemm.n * result
    spaces = [image_bytes * w.batch, of_a * w.groups, w.filters * w.windows * result * w.batch, size[0], of_b * w.groups]
    at = trace.Bases(*trace.pages(spaces)[:5])
    whole = runtime.conv_struct(w)
    whole.groups = 1  # the columns of all groups in one matrix, group after group
    runs = []
    for image in range(w.batch):
        source = at.input + image * image_bytes
        if not w.pointwise:
            place = ffi.new("pysim_trace_bases *", at._replace(input=source))
            runs.append(trace.Run(lib.pysim_im2col_simulate, (whole, place)))
        for group in range(w.groups):
            b = {"input": source + group * of_b} if w.pointwise else {"input": 0, "columns": at.columns + group * of_b}
            c = at.output + (image * w.groups + group) * of_c
            runs.append(trace.run_of(gemm, schedule, at._replace(filters=at.filters + group * of_a, output=c, **b)))
    return runs
