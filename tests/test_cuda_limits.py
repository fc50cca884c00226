# SPDX-License-Identifier: Apache-2.0
"""What is planned for a GPU is what the CUDA library takes: its own checks, compiled as C++, asked about sizes around every limit."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import ffi_of_header
from pysim.planner.conv_algorithms import products_of

from pysim import planner
from pysim.errors import PlanError
from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any
from pysim.planner import gpu
from pysim.problem.gemm import Gemm
from pysim.problem.text import parse
from pysim.record.schedule import DECOMPOSITIONS, GpuSchedule
from pysim.registry.rows import cuda_limits, gemm_kernels, native_file

SOURCES = ("arguments", "gemm", "device", "relayout", "reference", "mma")
MOST = cuda_limits()
RTX = load_any("rtx-3090")
assert isinstance(RTX, Gpu)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The entry points of products with the rows of some families, and the types of the ABI."""
    compiler, source = shutil.which("g++"), native_file("cuda")
    if compiler is None:
        pytest.skip("there is no g++, which compiles the CUDA library's checks for the CPU")
    if not (source / "gemm.cu").exists():
        pytest.skip("the sources of the CUDA library are not installed")
    path = tmp_path_factory.mktemp("limits") / "liblimits.so"
    flags = ("-O0", "-fPIC", "-std=c++17", "-DPYSIM_EMULATED", "-w", "-shared", "-x", "c++")
    folders = [f"-I{folder}" for folder in (source, source / "emulated")]
    files = [source / f"{name}.cu" for name in SOURCES] + [source / "emulated" / f"{name}.cpp" for name in ("block", "runtime")]
    subprocess.run([compiler, *flags, *folders, *map(str, files), "-o", str(path), "-lpthread"], check=True)
    ffi = ffi_of_header()
    return ffi, ffi.dlopen(str(path))


def taken(library: tuple[Any, Any], w: Gemm, schedule: GpuSchedule) -> bool:
    """Whether the library takes a launch."""
    ffi, lib = library
    index = {ffi.string(row.name).decode(): at for at, row in rows(library)}[schedule.kernel]
    dtypes = {"f32": lib.PYSIM_F32, "tf32": lib.PYSIM_TF32, "f16": lib.PYSIM_F16}
    lda, ldb = w.m if w.trans_a else w.k, w.k if w.trans_b else w.n
    result = dtypes["f32" if w.dtype == "tf32" else w.dtype]
    g = ffi.new("pysim_cuda_gemm *", [w.m, w.n, w.k, lda, ldb, w.n, w.trans_a, w.trans_b, dtypes[w.dtype], result])
    s = ffi.new(
        "pysim_cuda_schedule *", [index, DECOMPOSITIONS.index(schedule.decomposition), schedule.splits, schedule.along_n, schedule.group]
    )
    size = ffi.new("int64_t *")
    operand = ffi.cast("void *", 256)
    return bool(lib.pysim_cuda_gemm_workspace_bytes(g, s, operand, operand, size) == lib.PYSIM_OK)


def rows(library: tuple[Any, Any]) -> list[tuple[int, Any]]:
    ffi, lib = library
    found = []
    for at in range(lib.pysim_cuda_gemm_count()):
        info = ffi.new("pysim_cuda_gemm_info *")
        assert lib.pysim_cuda_gemm_at(at, info) == lib.PYSIM_OK
        found.append((at, info))
    return found


SIZES = [
    *((f"{MOST['GEMM_SIDE'] + more}x64x64", more <= 0) for more in (-1, 0, 1)),
    *((f"64x{MOST['GEMM_SIDE'] + more}x64", more <= 0) for more in (-1, 0, 1)),
    *((f"64x64x{MOST['GEMM_K'] + more}", more <= 0) for more in (-1, 0, 1)),
    (f"64x64x{1 << 30}", False),
    *((f"64x64x{MOST['RELAYOUT_ROWS'] + more}:nn", True) for more in (-8, 0, 8)),
    ("4194304x4194304x8", True),
]


@pytest.mark.parametrize(("size", "some"), SIZES)
@pytest.mark.parametrize("dtype", ["tf32", "f16"])
def test_planner_and_library_agree_about_products_around_every_limit(library: tuple[Any, Any], size: str, some: bool, dtype: str) -> None:
    w = parse(f"gemm:{size}:{dtype}")
    assert isinstance(w, Gemm)
    ffi, _ = library
    built = {ffi.string(info.name).decode() for _, info in rows(library)}
    kernels = [kernel for kernel in gemm_kernels() if kernel.dtype == dtype and kernel.name in built and not gpu.illegal(RTX, kernel)]
    assert kernels
    try:
        found = gpu.space(RTX, w, kernels)
        planned = {kernel.name for kernel in found.rows.kernels}
    except PlanError:
        planned = set()
    assert planned == {kernel.name for kernel in kernels if taken(library, w, GpuSchedule(kernel.name, "data_parallel", 1, False, 1))}
    if not some:
        assert not planned


def test_an_operand_of_too_many_rows_is_not_copied(library: tuple[Any, Any]) -> None:
    kernel = next(kernel for kernel in gemm_kernels() if kernel.dtype == "tf32" and kernel.family == "mma" and not gpu.illegal(RTX, kernel))
    schedule = GpuSchedule(kernel.name, "data_parallel", 1, False, 1)
    for rows_, fits in ((MOST["RELAYOUT_ROWS"], True), (MOST["RELAYOUT_ROWS"] + 4, False)):
        w = Gemm(m=64, n=rows_, k=64, dtype="tf32")  # B has its n contiguous: the copy has n rows of k
        assert taken(library, w, schedule) is fits
        assert (gpu.too_large(w, kernel, None, (True, True)) == "") is fits


def test_the_products_of_im2col_have_no_more_windows_than_a_product_takes() -> None:
    w = parse("conv:mb1000ic8ih128oc8kh1")
    of = products_of(w, True)  # type: ignore[arg-type]
    assert of.problem.m <= MOST["GEMM_SIDE"] < 1000 * 128 * 128 and of.images * of.times >= 1000


def test_no_check_of_the_library_has_a_limit_of_its_own() -> None:
    sources = Path(native_file("cuda"))
    if not (sources / "gemm.cu").exists():
        pytest.skip("the sources of the CUDA library are not installed")
    for name in ("gemm", "conv", "conv_im2col", "conv_winograd", "winograd_fused4", "winograd_staged", "relayout"):
        assert not re.search(r"1 << (22|24|27|29|30)\b", (sources / f"{name}.cu").read_text()), name


def test_a_product_beyond_the_limits_is_refused_with_them() -> None:
    with pytest.raises(PlanError, match=r"k up to 134,217,728"):
        planner.plan(f"gemm:64x64x{1 << 28}", "h200")
