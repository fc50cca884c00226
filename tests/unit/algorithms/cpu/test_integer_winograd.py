# SPDX-License-Identifier: Apache-2.0
"""Winograd's convolution of bytes gives the sums of the definition, whatever operands, and asks for the memory that its module says."""

from typing import Any

import numpy as np
import pytest
from integer_layers import convolved, elements, finished, with_result_scales

from pysim import planner
from pysim.algorithms.cpu import integer_winograd
from pysim.problem.conv import Conv
from pysim.problem.text import parse
from pysim.record.integers import Integers, Result
from pysim.record.schedule import Schedule
from pysim.runtime import cpu
from pysim.runtime.cpu_launch import Prepared

RESULTS: tuple[Result, ...] = ("u8", "s8", "f32", "s32")
needs_pairs = pytest.mark.skipif("s8_pairs_16x6__avx2" not in cpu.available_kernels(), reason="the CPU has no AVX2")


def random_layer(random: Any, many: bool) -> Conv:
    size, groups = random.integers, int(random.integers(1, 3))
    channels, filters = int(size(300, 700) if many else size(1, 40)), int(size(1, 25))
    pads = [int(pad) for pad in size(0, 3, 4)]
    height, width = (int(max(3 - sum(pair), 1) + size(0, 9 if many else 50)) for pair in (pads[:2], pads[2:]))
    top, bottom, left, right = pads
    return Conv(
        dtype="s8", batch=int(size(1, 3)), groups=groups, channels=channels * groups, height=height, width=width, filters=filters * groups,
        kernel_h=3, kernel_w=3, pad_top=top, pad_bottom=bottom, pad_left=left, pad_right=right,
    )  # fmt: skip


def layer_weights(random: Any, of: Conv, trial: int) -> Any:
    """Any bytes, the extremes, or the largest alone: its sums leave 2^25, so channels are taken in sets."""
    shape = (of.filters, of.channels // of.groups, 3, 3)
    return np.full(shape, (127, -128)[trial % 2], np.int8) if trial % 4 == 3 else elements(random, shape, "s8")


@needs_pairs
@pytest.mark.parametrize("seed", range(4))
def test_results_are_those_of_exact_sums(seed: int) -> None:
    random = np.random.default_rng(seed)
    for trial in range(12):
        problem = random_layer(random, many=trial % 6 == 3)
        plan = planner.plan(problem, "zen3", algorithm=integer_winograd.NAME, threads=1 + trial % 3)
        kind, result, count = ("s8", "u8")[trial % 2], RESULTS[(trial + seed) % 4], problem.filters
        zero = int(random.integers(-128, 128) if kind == "s8" else random.integers(0, 256))
        scales = None if result == "s32" else (random.random(count if trial % 3 else 1) * 2e-3 + 1e-4).astype(np.float32)
        integers = Integers(kind == "u8", zero, scales, result, 3 if result in ("u8", "s8") else 0)
        activation: Any = (None, "relu", ("clamp", -20, 90))[trial % (2 if scales is None else 3)]
        if result in ("u8", "s8") and trial > 5:
            integers, activation = with_result_scales(random, integers, count, trial)
        bias = random.integers(-(10**6), 10**6, count).astype(np.int32) if trial % 2 else None
        x, w = (
            elements(random, (problem.batch, problem.channels, problem.height, problem.width), kind),
            layer_weights(random, problem, trial),
        )
        if trial % 4 == 3:
            x[:] = x.max()
        y = Prepared.of(plan, w, bias, activation, plan.threads, integers=integers)(x)
        sums = convolved(x.astype(np.int64) - zero, w.astype(np.int64), problem)
        np.testing.assert_array_equal(y, finished(sums, bias, integers, activation), f"{problem.text} {plan.name} {integers}")


@pytest.mark.parametrize("text", ["conv:mb2ic3ih9oc7kh3:s8", "conv:g2ic6ih56oc10kh3ph1:s8", "conv:ic20ih13iw70oc13kh3ph2:s8"])
def test_workspace_and_prepared_bytes_are_what_the_library_asks_for(text: str) -> None:
    problem = parse(text)
    assert isinstance(problem, Conv)
    ffi, lib = cpu.library()
    nbytes = ffi.new("int64_t *")
    for plan in planner.plans(problem, "zen3", top=20, algorithm=integer_winograd.NAME):
        schedule = plan.schedule
        assert isinstance(schedule, Schedule)
        structs = cpu.problem_struct(problem), cpu.schedule_struct(schedule, problem)
        cpu.check(lib.pysim_workspace_bytes(*structs, 1, nbytes))
        assert nbytes[0] == integer_winograd.workspace_bytes(problem, schedule, "nchw"), plan.name
        cpu.check(lib.pysim_prepared_bytes(*structs, nbytes))
        assert nbytes[0] == integer_winograd.prepare(problem, schedule, "nchw").size_bytes, plan.name


def test_what_it_does_not_compute_is_refused_with_a_reason() -> None:
    texts = ("conv:ic16ih14oc16kh3sh2ph1:s8", "conv:ic16ih14oc16kh5ph2:s8", "conv:ic16ih14oc16kh3dh1ph2:s8", "conv:ic16ih14oc16kh3ph1")
    for text, why in zip(texts, ("shape", "shape", "shape", "type"), strict=True):
        assert {one.what: one.code for one in planner.plan(text, "zen3").rejected}[integer_winograd.NAME] == why


def test_a_3x3_of_bytes_is_planned_by_it_where_the_cpu_has_pairs_alone() -> None:
    text = "conv:ic128ih28oc128kh3ph1:s8"
    assert planner.plan(text, "zen3").algorithm == integer_winograd.NAME
    assert planner.plan(text, "sapphire-rapids").algorithm == "sconv"
