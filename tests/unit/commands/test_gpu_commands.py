# SPDX-License-Identifier: Apache-2.0
"""Plans for a GPU as the commands show them."""

import re

import msgspec
import pytest
from command_line import document, invoke, ok, refused

from pysim import planner
from pysim.algorithms import algorithm_named
from pysim.cachemodel.gpu import waves
from pysim.errors import MissingError
from pysim.machine.load import load_any
from pysim.problem.text import parse
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import CONV_LAYOUTS, conv_kernels, gemm_kernels
from pysim.runtime import cuda


def test_the_command_plans_for_a_gpu_without_one():
    found = document("plan", "gemm:10240x4096x4096:f16:nn", "gemm:100x100x100:tf32", "-m", "h200")["plans"]
    assert [item["problem"] for item in found] == ["gemm:10240x4096x4096:f16", "gemm:100x100x100:tf32"]
    assert found[0]["machine"] == "h200" and found[0]["cost"]["seconds"] > 0
    text = ok("plan", "gemm:10240x4096x4096:f16", "-m", "h200")
    assert found[0]["kernel"] in text and "DP data parallel" in text and "TFLOP/s" not in text.splitlines()[0]
    assert "\n\nalgorithm" in ok("plan", "gemm:64x64x64:bf16", "-m", "h200", "--explain")


def test_the_command_ranks_launches():
    lines = ok("plan", "gemm:512x512x8192:f16", "-m", "h200", "--top", "5").splitlines()
    assert lines[0] == "gemm:512x512x8192:f16" and [line.split()[0] for line in lines[2:7]] == ["1", "2", "3", "4", "5"]


def test_the_command_lists_cuda_kernels():
    rows = document("kernels", "--cuda")["kernels"]
    assert [row["name"] for row in rows] == [row.name for row in (*gemm_kernels(), *conv_kernels())]
    text = ok("kernels", "--cuda", "winograd")
    assert all(row.name in text for row in conv_kernels() if row.algorithm == "winograd") and "product " not in text
    assert all(
        row.name in ok("kernels", "--cuda", "f16", "wgmma") for row in gemm_kernels() if (row.mainloop, row.dtype) == ("wgmma", "f16")
    )
    assert "no CUDA kernel's name contains all of f17" in refused(2, "kernels", "--cuda", "f17")


def test_a_network_is_planned_for_a_gpu_without_one():
    plans = document("plan", "resnet50", "-m", "h200")["plans"]
    assert len(plans) == 23 and all(0 < item["cost"]["seconds"] < 1e-2 for item in plans)


def test_parts_of_k_that_are_reduced_in_a_cluster_need_no_workspace():
    plan = planner.plan("conv:mb32ic512ih7oc512kh3ph1", "h200", memory_limit=0)
    assert plan.kernel.endswith("_single") and plan.schedule.decomposition == "split_k" and plan.workspace_bytes == 0


def test_a_measured_row_assumes_nothing_and_one_without_tiles_says_what_it_assumes():
    assert planner.plan("conv:mb32ic512ih7oc512kh3ph1", "h200", memory_limit=0).assumed == ()
    staged = planner.plan("conv:mb32ic512ih7oc512kh3ph1", "h200", algorithm="winograd")
    named = {"rate_share", "element_instructions", "patch_instructions"}
    assert len(staged.cost.terms) > len(waves.TERMS) and set(staged.assumed) == {f"model.passes.{name}" for name in named}
    columns = planner.plan("conv:mb8ic256ih14oc256kh3ph1", "h200", algorithm="im2col").assumed
    assert "model.passes.column_instructions" in columns and "model.passes.column_instructions" not in staged.assumed
    lent = planner.plan("conv:g32mb32ic32ih112oc32kh3ph1", "h200").assumed
    assert lent == ("kernel_attributes.f32_depthwise",)
    parts = planner.plan("conv:mb8ic256ih14oc256kh3ph1", "h200", algorithm="wgmma").assumed
    assert set(parts) == {f"model.passes.{name}" for name in ("rate_share", "element_instructions", "copied_instructions")}
    assert "model.families.conv_mma_f16: those of mma" in planner.plan("conv:mb8ic256ih14oc256kh3ph1:f16", "a100", layout="nhwc").assumed


@pytest.mark.parametrize("layout", CONV_LAYOUTS)
@pytest.mark.parametrize("row", [row for row in conv_kernels() if row.decomposes and not row.tiles.tensor], ids=lambda row: row.name)
def test_the_workspace_of_a_convolution_is_the_librarys(row, layout):
    try:
        cuda.library()
    except MissingError as error:
        pytest.skip(str(error))
    w = msgspec.structs.replace(parse("conv:g2mb3ic150ih11iw9oc138kh3kw3ph1pw1"), dtype=row.dtype)
    for kind, splits in (("data_parallel", 1), ("split_k", 2), ("split_k", 3), ("split_k", 9), ("stream_k", 5)):
        schedule, algorithm = GpuSchedule(row.name, kind, splits, False, 1), algorithm_named(row.algorithm, w, load_any("h200"))
        assert algorithm.workspace_bytes(w, schedule, layout) == cuda.Launch(w, schedule, layout=layout).workspace_bytes, kind


def test_the_command_keeps_to_a_layout_and_a_limit_of_workspace():
    problem = "conv:mb32ic64ih56oc64kh3ph1"
    (free,) = document("plan", problem, "-m", "h200")["plans"]
    assert free["layout"] == "nchw" and "memory_limit_bytes" not in free
    (within,) = document("plan", problem, "-m", "h200", "--memory-limit", "0", "--layout", "nhwc")["plans"]
    assert (within["workspace_bytes"], within["memory_limit_bytes"], within["layout"]) == (0, 0, "nhwc")
    title, row = ok("plan", problem, "-m", "h200", "--memory-limit", "0").splitlines()[:2]
    assert "workspace" in title and " 0 B " in row


@pytest.mark.parametrize(("text", "count"), [("0", 0), ("1000", 1000), ("64MiB", 64 << 20), ("1.5 GiB", 3 << 29), ("2GB", 2 * 10**9)])
def test_a_limit_is_written_in_bytes_or_with_a_unit(text, count):
    (plan,) = document("plan", "gemm:64x64x64", "-m", "h200", "--memory-limit", text)["plans"]
    assert plan["memory_limit_bytes"] == count


@pytest.mark.parametrize("text", ["-1", "64Mo", "many", "1e6", "", "nan"])
def test_a_limit_that_is_no_number_of_bytes_is_refused_with_what_is_right(text):
    result = invoke("plan", "gemm:64x64x64", "-m", "h200", "--memory-limit", text)
    assert result.exit_code == 2 and f'"{text}" is not a number of bytes; expected e.g. 0, 268435456, 64MiB' in result.stderr


@pytest.mark.parametrize(
    ("words", "says"), [(("--layout", "nhwc"), "layout nhwc is for GPUs"), (("--memory-limit", "0"), "above the limit of 0")]
)
def test_a_layout_that_a_cpu_lacks_and_a_limit_that_its_kernels_pass_are_refused(words, says):
    assert says in refused(2, "plan", "conv:ic8ih9oc8kh3", "-m", "zen4", *words)


@pytest.mark.parametrize("command", ["compare", "search"])
def test_a_layout_of_gpus_is_refused_on_a_cpu_without_naming_layouts_that_the_command_lacks(command):
    result = invoke(command, "conv:ic8ih9oc8kh3", "--layout", "nhwc")
    assert result.exit_code == 2 and "--layout is for GPUs; host is a CPU" in result.stderr


def test_a_limit_that_no_kernel_keeps_is_refused_with_what_one_needs():
    message = refused(2, "plan", "conv:mb4ic128ih56oc128kh3ph1:f16", "-m", "h200", "--memory-limit", "0")
    assert re.search(r"f16_\w+: its workspace of [\d,]+ bytes is above the limit of 0", message)


def test_running_for_a_gpu_that_is_not_there_is_refused_in_a_sentence():
    assert "v100" in refused(3, "run", "gemm:64x64x64", "-m", "v100")
