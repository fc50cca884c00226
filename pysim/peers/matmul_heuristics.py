# SPDX-License-Identifier: Apache-2.0
"""nvidia-matmul-heuristics, an analytic peer: it predicts times of matrix products on a GPU and runs nothing."""

import ctypes
import importlib
from functools import cache
from importlib import metadata
from typing import Any

from pysim.errors import MissingError
from pysim.problem.gemm import Gemm
from pysim.record.schedule import GpuSchedule
from pysim.registry.cuda import GemmKernel

# Its letters for the types of inputs, computation and result, and its format of a kernel's instruction shape
_PRECISIONS = {"f16": "HSH", "bf16": "TST", "f32": "SSS", "f64": "DDD", "tf32": "FSS", "s8": "BII"}


@cache
def _heuristics(gpu: str) -> tuple[Any, Any]:
    """(module, interface for a GPU by machine name)."""
    try:
        module = importlib.import_module("nvMatmulHeuristics.nvMatmulHeuristics")
    except (ImportError, OSError) as error:
        raise MissingError(f"nvidia-matmul-heuristics is not installed: pip install nvidia-matmul-heuristics ({error})") from None
    known = {"h200": "H200_SXM", "rtx-3090": "RTX_3090"}
    if gpu not in known:
        raise MissingError(f"nvidia-matmul-heuristics is asked about {', '.join(known)} here, not about {gpu}")
    flags = module.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING
    target = module.NvMatmulHeuristicsTarget.CUTLASS3
    return module, module.NvMatmulHeuristicsInterfaceEx(backend=target, flags=flags, gpu=module.NvMatmulHeuristicsNvidiaGpu[known[gpu]])


def _problem(w: Gemm, gpu: str) -> tuple[Any, Any, str]:
    if w.dtype not in _PRECISIONS:
        raise MissingError(f"nvidia-matmul-heuristics is not asked about {w.dtype}")
    module, interface = _heuristics(gpu)
    layout = module.NvMatmulHeuristicsMatmulLayout[f"{w.layout.upper()}_ROW_MAJOR"]
    return interface, interface.makeNvMatmulHeuristicsProblem(w.m, w.n, w.k, layout), _PRECISIONS[w.dtype]


def estimate(workload: Gemm, gpu: str) -> tuple[float, str]:
    """(predicted seconds of its own best kernel, version). MissingError without a prediction."""
    interface, problem, precision = _problem(workload, gpu)
    runtimes = [float(item["runtime"]) for item in interface.get(problem, 8, precision=precision)]
    times = [seconds for seconds in runtimes if seconds > 0]
    if not times:
        raise MissingError(f"nvidia-matmul-heuristics has no estimate for {workload.text}")
    return min(times), f"nvidia-matmul-heuristics {metadata.version('nvidia-matmul-heuristics')}"


def estimate_kernel(w: Gemm, gpu: str, kernel: GemmKernel, schedule: GpuSchedule) -> float | None:
    """Predicted seconds of a kernel of our shape (tiles, stages, cluster, split); None without a prediction."""
    interface, problem, precision = _problem(w, gpu)
    shape = interface.nvmmhKernelConfiguration()
    depth = {"f16": 16, "bf16": 16, "tf32": 8, "s8": 32, "f64": 4}.get(w.dtype, 8)
    instruction = (64 if kernel.tiles.by_warpgroups else 16, 8, depth) if kernel.tiles.tensor else (1, 1, 1)
    shape.cta[:] = (kernel.block_m, kernel.block_n, kernel.block_k)
    shape.warp[:] = (kernel.warp_m, kernel.warp_n, kernel.block_k)
    shape.instr[:] = instruction
    shape.splitK = schedule.splits if schedule.decomposition == "split_k" else 1
    shape.loadStages, shape.gridSwizzle, shape.ctaOrder = kernel.stages, schedule.group, int(schedule.along_n)
    shape.cluster[:] = (kernel.cluster_m, kernel.cluster_n)
    seconds = float(
        interface.nvMatmulHeuristicsEstimateRuntime(
            interface.handle, precision.encode(), ctypes.c_int(interface.target), ctypes.byref(problem), ctypes.byref(shape),
            interface.hardware_descriptor,
        )
    )  # fmt: skip
    return seconds if seconds > 0 else None
