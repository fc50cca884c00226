# SPDX-License-Identifier: Apache-2.0
"""Whatever problem can be written is planned or refused, soon and in little memory. PYSIM_LONG=1 tries some hundred thousand of them."""

import math
import os
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from strategies_problems import convolutions, problems

from pysim.errors import PlanError, ProblemError
from pysim.explain.text import explain
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any, names
from pysim.planner.plan import plan
from pysim.problem.conv import Conv
from pysim.problem.dtypes import SIZES
from pysim.problem.text import Workload, parse

EXAMPLES = 20_000 if os.environ.get("PYSIM_LONG") else 30  # of each machine
MEMORY, SECONDS = 200 << 20, 1.0
long = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
HUGE = (
    "conv:ic64ih1000003oc64kh5ph2",
    "conv:ic64ih32768oc64kh5ph2",
    "conv:ic16ih8oc16oh8kh2147483647ph1iw8ow8kw3pw1",
    "gemm:1000x1000x100000000",
    "gemm:100000000000x4x4",
    "conv:ic1000000007ih7oc64kh3",
    "conv:g1000000000ic1000000000oc1000000000ih7kh3",
)


def bounded(workload: Workload, on: str, model: str, layout: str, state: str) -> float | None:
    """The predicted seconds of a plan, which takes little time and memory; None where it is refused."""
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        try:
            found = plan(workload, on, model=model, layout=layout, state=state)
            assert explain(found) and found.to_dict()
        except (PlanError, ProblemError):
            return None
    return found.cost.seconds if model == "full" else 1.0


@pytest.mark.parametrize("name", names())
@long
@given(problems(), st.sampled_from(("nchw", "nhwc")), st.sampled_from(("hot", "cold")), st.booleans())
def test_every_problem_is_planned_or_refused(name: str, workload: Workload, layout: str, state: str, csa: bool) -> None:
    on = load_any(name)
    of_gpu = isinstance(on, Gpu)
    model = "csa" if csa and not of_gpu and on.csa else "full"
    seconds = bounded(workload, on, model, layout if of_gpu and isinstance(workload, Conv) else "nchw", state)
    assert seconds is None or (math.isfinite(seconds) and seconds > 0)


@pytest.mark.parametrize("text", HUGE)
@pytest.mark.parametrize("name", ["zen4", "power10-e1050", "h200", "rtx-2080ti"])
def test_a_huge_problem_takes_little_time_and_memory(name: str, text: str) -> None:
    on = load_any(name)
    plan("conv:ic64ih56oc64kh3ph1", on)
    tracemalloc.start()
    try:
        bounded(parse(text), on, "full", "nchw", "hot")
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
    begin = time.process_time()
    bounded(parse(text), on, "full", "nchw", "hot")
    assert time.process_time() - begin < SECONDS


def test_windows_of_padding_alone_are_planned() -> None:
    seconds = bounded(parse("conv:ic2ih2oc4kh3kw1sh50sw4ph20pw0"), "zen4", "full", "nchw", "hot")
    assert seconds is not None and 0 < seconds < 1e-6


def test_kernel_rows_with_too_many_patterns_are_refused_with_both_sizes() -> None:
    with pytest.raises(PlanError, match=r"kernel rows \(kh\) are 5,000 and their stride \(sh\) is 4,999"):
        plan("conv:ic1ih30000iw4oc1kh5000kw1sh4999sw1ph1pw1", "zen4")
    assert plan("conv:ic1ih30000iw4oc1kh5000kw1sh4999sw1", "zen4").seconds > 0  # all rows meet the image, in one way


@pytest.mark.parametrize("name", ["h200", "v100", "rtx-3090", "rtx-2080ti"])
@long
@example(parse("conv:mb1000ic32ih224iw1oc8kh1kw1sh10sw10ph2pw0"), "nchw")
@example(parse("conv:mb100000ic32ih28iw7oc1kh1kw1sh2sw10ph1pw0"), "nchw")
@example(parse("conv:mb100000ic1ih28oc1kh5kw3sh8ph0pw1"), "nhwc")
@given(convolutions(), st.sampled_from(("nchw", "nhwc")))
def test_no_convolution_is_faster_than_memory_brings_its_operands(name: str, workload: Conv, layout: str) -> None:
    on = load_any(name)
    assert isinstance(on, Gpu)
    seconds = bounded(workload, on, "full", layout, "cold")
    if seconds is not None:
        filters = workload.filters * workload.channels // workload.groups * workload.kernel_h * workload.kernel_w
        least = touched(workload, layout == "nhwc") + filters * SIZES[workload.dtype]
        assert seconds >= least / on.memory_bytes_per_second.value * (1 - 1e-9)


def touched(w: Conv, nhwc: bool) -> float:
    """Bytes of the input in sectors of 32 that some window reads, position by position; 0 of images too large for that."""
    if max(w.height * w.width * (w.channels if nhwc else 1), w.kernel_h * w.out_h, w.kernel_w * w.out_w) > 1 << 16:
        return 0
    rows = {p * w.stride_h + r * w.dilation_h - w.pad_top for p in range(w.out_h) for r in range(w.kernel_h)} & {*range(w.height)}
    columns = {q * w.stride_w + s * w.dilation_w - w.pad_left for q in range(w.out_w) for s in range(w.kernel_w)} & {*range(w.width)}
    size, images = SIZES[w.dtype] * (w.channels if nhwc else 1), 8  # planes begin at other places in sectors
    down, across = (np.array(sorted(found), np.int64) for found in (rows, columns))
    places = np.add.outer(np.arange(images) * w.height, down)[..., None] * w.width + across
    bytes_of = places.reshape(-1, 1) * size + np.arange(0, size, SIZES[w.dtype])
    sectors = np.unique(bytes_of // 32)
    return sectors.size * 32 / images * w.batch * (1 if nhwc else w.channels)
