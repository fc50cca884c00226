#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shared-memory wavefronts of the fused Winograd rows of native/cuda/conv: predicted by winograd_launch, counted by Nsight Compute.

    lab/benchmarks/cuda/conv_wavefronts.py -o wavefronts-conv.json [--only REGEX]

Each row runs under NCHW and NHWC on a few small convolutions: whole tiles, ragged ones with even and with odd rows, with groups, and
with channels in parts. All wavefronts of a data-parallel launch are predicted. If channels are in parts, the work assignment and the
split-K fix-up are not modelled. Two such launches are therefore counted whose channels, and so all shares, differ by a factor of two, and
their difference is compared. Counters, files and the table are as in wavefronts.py. Failed launches are listed at the end. Exits with 1 if
a launch fails or differs. Needs ncu, a GPU and the CUDA library ($PYSIM_CUDA_LIBRARY).
"""

import re
import sys
from typing import Any, NamedTuple

import winograd_launch
from wavefronts import KINDS, Counts, counted, parsed, print_table, write

from pysim.errors import PysimError
from pysim.problem.conv import Conv
from pysim.record.schedule import Decomposition, GpuSchedule
from pysim.registry.cuda import CONV_LAYOUTS, ConvKernel, conv_kernels
from pysim.runtime import cuda
from pysim.runtime.cuda import DeviceArray, Launch

KERNELS = "regex:^(fused_kernel|fused4_kernel)$"
RAN = "ran launch "  # and its number, printed after each launch


class Run(NamedTuple):
    """One comparison: a launch, or, if `less` is set, the difference of two."""

    kernel: ConvKernel
    layout: str
    problem: Conv
    less: Conv | None = None
    decomposition: Decomposition = "data_parallel"
    splits: int = 1

    @property
    def launches(self) -> tuple[Conv, ...]:
        return (self.problem, self.less) if self.less else (self.problem,)


def runs_of(kernel: ConvKernel) -> list[Run]:
    """The runs for a row."""
    block, depth, side = kernel.block_filters, kernel.block_k, 8 * kernel.outputs

    def of(batch: int, channels: int, filters: int, height: int, width: int, pad: int = 1, groups: int = 1) -> Conv:
        pads = dict.fromkeys(("pad_top", "pad_left", "pad_bottom", "pad_right"), pad)
        taps = {"kernel_h": 3, "kernel_w": 3, **pads}
        return Conv(batch=batch, channels=channels * groups, filters=filters * groups, height=height, width=width, groups=groups, **taps)

    whole = of(1, 4 * depth, 2 * block, side, side)
    ragged = [of(3, 4 * depth + 5, block + 5, 11, 9, pad=0, groups=2), of(2, 2 * depth + 3, block - 7, 13, 14)]
    longer, shorter = (of(4, steps * depth - 3, block + 1, 7, 7) for steps in (10, 5))
    return [
        one
        for layout in CONV_LAYOUTS
        for one in (
            *(Run(kernel, layout, problem) for problem in (whole, *ragged)),
            Run(kernel, layout, longer, shorter, "split_k", 3),
            Run(kernel, layout, longer, shorter, "stream_k", 5),
        )
    ]


def launch(runs: list[Run]) -> None:
    """The process under ncu: runs every launch once."""
    number = 0
    for r in runs:
        for w in r.launches:
            try:
                floats = (
                    w.batch * w.channels * w.height * w.width,
                    w.filters * (w.channels // w.groups) * 9,
                    w.batch * w.filters * w.windows,
                )
                operands = [DeviceArray((size,), "f32") for size in floats]
                x, weights, y = (one.pointer for one in operands)
                schedule = GpuSchedule(r.kernel.name, r.decomposition, r.splits, False, 8)
                made = Launch(w, schedule, layout=r.layout).on((x, weights, y))
                made.run()
                cuda.synchronize()
                print(f"{RAN}{number}", flush=True)
            except PysimError as error:
                print(f"launch {number}: {error}", flush=True)
            number += 1


def compared(runs: list[Run], seen: dict[int, Counts]) -> tuple[list[dict[str, Any]], list[str]]:
    """One entry for each run with prediction and counters; and the runs without them."""
    entries, missing, number = [], [], 0
    for r in runs:
        mine = [seen.get(number + i) for i in range(len(r.launches))]
        number += len(r.launches)
        problem = " less ".join(w.text for w in r.launches)
        found = [one for one in mine if one]
        if len(found) < len(mine):
            missing.append(f"{r.kernel.name} {r.layout} {problem} {r.decomposition}")
            continue
        counts = {key: {kind: found[0][key][kind] - sum(one[key][kind] for one in found[1:]) for kind in KINDS} for key in found[0]}
        costs = [winograd_launch.launch(r.kernel, w, r.layout == "nhwc") for w in r.launches]
        totals = [{kind: cost[kind].total if kind in cost else 0 for kind in KINDS} for cost in costs]
        predicted = {kind: totals[0][kind] - sum(one[kind] for one in totals[1:]) for kind in KINDS}
        entry = {"kernel": r.kernel.name, "layout": r.layout, "problem": problem, "decomposition": r.decomposition, "splits": r.splits}
        entries.append(entry | counts | {"predicted": predicted, "equal": predicted == counts["counted"]})
    return entries, missing


def main() -> None:
    options = parsed(__doc__)
    rows = [row for row in conv_kernels() if row.outputs > 1 and not row.staged and re.search(options.only, row.name)]
    runs = [r for row in rows for r in runs_of(row)]
    if options.launch:
        return launch(runs)
    version, found, messages = counted([__file__, "--launch", "--only", options.only], KERNELS)
    ran = [int(number) for number in re.findall(rf"^{RAN}(\d+)$", messages, re.MULTILINE)]
    if len(ran) > len(found):
        sys.exit(f"ncu counted {len(found)} launches of {len(ran)}:\n{messages[-6000:]}")
    entries, missing = compared(runs, dict(zip(ran, found, strict=False)))  # ncu may also count the launch that failed last
    if options.output:
        write(options.output, version, entries)
    if missing:
        print("".join(line for line in messages.splitlines(True) if not line.startswith(RAN)), *missing, "", sep="\n")
    for entry in entries:
        if not entry["equal"]:
            print(entry)
    print_table(entries)
    sys.exit(bool(missing) or not all(entry["equal"] for entry in entries))


if __name__ == "__main__":
    main()
