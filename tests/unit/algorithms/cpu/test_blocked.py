# SPDX-License-Identifier: Apache-2.0
"""Convolutions of planes by way of blocks of channels: the numbers of others, with any epilogue and number of threads;
what does not fit is said; the model counts what is run."""

import numpy as np
import pytest
from native_library import native

import pysim
from pysim.algorithms.cpu import blocked, direct_nchwc
from pysim.errors import PlanError
from pysim.problem.text import parse
from pysim.record.plan import on_cpu
from pysim.runtime import cpu_launch

pytestmark = native

RANDOM = np.random.default_rng(11)
GIVEN = [
    ("conv:mb2ic32ih9oc48kh3ph1", {"padding": 1}),
    ("conv:mb3ic16ih8iw11oc32kh3sh2ph1", {"padding": 1, "stride": 2}),
    ("conv:mb1ic32ih7oc16kh1", {}),
    ("conv:mb1ic16ih12oc16kh5dh1ph4", {"padding": 4, "dilation": 2}),
    ("conv:g2mb2ic64ih6oc32kh3ph1", {"padding": 1, "groups": 2}),
    ("conv:mb1ic16ih17iw5oc16kh7kw1ph3pw0", {"padding": (3, 0)}),
]


@pytest.mark.parametrize(("text", "given"), GIVEN)
def test_it_gives_what_a_direct_convolution_gives(text, given):
    w = parse(text)
    x = RANDOM.standard_normal((w.batch, w.channels, w.height, w.width)).astype(np.float32)
    f = RANDOM.standard_normal((w.filters, w.channels // w.groups, w.kernel_h, w.kernel_w)).astype(np.float32)
    bias = RANDOM.standard_normal(w.filters).astype(np.float32)
    added = RANDOM.standard_normal((w.batch, w.filters, w.out_h, w.out_w)).astype(np.float32)
    plan = pysim.plan(w, algorithm=blocked.NAME)
    for activation in (None, "relu", ("clamp", -1.0, 2.0), "silu"):
        want = pysim.conv2d(x, f, bias, activation=activation, residual=added, accuracy="ieee", **given)
        got = pysim.conv2d(x, f, bias, activation=activation, residual=added, plan=plan, **given)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    one = cpu_launch.Prepared(w, f, on_cpu(plan)[0])(x)
    for threads in (2, 3, 5):
        assert np.array_equal(cpu_launch.Prepared(w, f, on_cpu(plan)[0], threads=threads)(x), one)


@pytest.mark.parametrize(("text", "given"), GIVEN)
def test_sizes_are_the_librarys(text, given):
    plan = pysim.plan(text, algorithm=blocked.NAME)
    launch = cpu_launch.Launch(plan.workload, on_cpu(plan)[0])
    assert launch.prepared_bytes == blocked.prepare(plan.workload, plan.schedule, "nchw").size_bytes
    assert launch.workspace_bytes == blocked.workspace_bytes(plan.workload, plan.schedule, "nchw")


def test_no_whole_blocks_and_other_layouts_are_refused():
    with pytest.raises(PlanError, match=r"20 filters are not a multiple of (4|8|16)"):
        pysim.plan("conv:mb1ic64ih9oc20kh3ph1", machine="zen5", algorithm=blocked.NAME, micro_kernel="f32_nchwc_14x32__avx512")
    with pytest.raises(PlanError, match="NCHW input and output"):
        pysim.plan("conv:mb1ic64ih9oc64kh3ph1", machine="zen5", layout="nchw16c", algorithm=blocked.NAME)


def test_kernels_of_7x1_are_planned_so_and_winograds_are_not():
    assert pysim.plan("conv:mb1ic192ih17oc192kh7kw1ph3pw0", machine="zen5").algorithm == blocked.NAME
    assert pysim.plan("conv:mb1ic64ih56oc64kh3ph1", machine="zen5").algorithm != blocked.NAME


def test_it_costs_what_blocks_cost_and_their_way_there_and_back():
    text = "conv:mb2ic64ih28oc128kh3sh2ph1"
    planes, blocks = (
        pysim.plan(text, machine="zen5", algorithm=name, layout=layout, micro_kernel="f32_nchwc_14x32__avx512")
        for name, layout in ((blocked.NAME, "nchw"), (direct_nchwc.NAME, "nchw16c"))
    )
    vectors = 2 * (64 * 28 * 28 + 128 * 14 * 14) / 16
    assert planes.cost.terms["kernel"] == blocks.cost.terms["kernel"]
    assert planes.cost.terms["pack"] == pytest.approx(vectors * (1 / 2 + 1 + 4))
    assert 0 < planes.cost.cycles - blocks.cost.cycles < 2 * planes.cost.terms["pack"]


@pytest.mark.parametrize("threads", [2, 3, 16])
def test_plans_for_threads_divide_what_runs_divide(threads):
    for text in ("conv:mb1ic192ih17oc192kh7kw1ph3pw0", "conv:mb3ic64ih28oc96kh3sh2ph1"):
        alone, team = (pysim.plan(text, machine="zen5", threads=count, algorithm=blocked.NAME) for count in (1, threads))
        part = blocked.largest_part(team.workload, team.schedule, threads)
        assert alone.seconds / threads * 0.8 < team.seconds < alone.seconds
        assert part.share * part.problem.flops * threads >= 0.95 * team.workload.flops
    assert blocked.NAME in repr(team) and "64 input channels to blocks of 16" in team.explain()
