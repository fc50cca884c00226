# SPDX-License-Identifier: Apache-2.0
"""The GPUs that are shipped, and kernels for them of any tile."""

import msgspec

from pysim.machine.gpu import Gpu
from pysim.machine.load import load_any, names
from pysim.registry.cuda import GemmKernel

GPUS = tuple(name for name in names() if isinstance(load_any(name), Gpu))


def machine(name: str) -> Gpu:
    found = load_any(name)
    assert isinstance(found, Gpu)
    return found


H200 = machine("h200")


def simt(block: tuple[int, int, int], warp: tuple[int, int], thread: tuple[int, int], stages: int = 2, dtype: str = "f32") -> GemmKernel:
    return GemmKernel(0, "simt", dtype, "full", *block, *warp, *thread, stages, 1, 1, 70)


BLOG = simt((128, 128, 8), (32, 64), (8, 8))  # CUTLASS 0.1's "huge" SGEMM
SMALL = simt((64, 64, 16), (32, 32), (8, 4), 3)
TMA = {"exact_capability": True, "alignment": 16, "producer": True}
WGMMA = GemmKernel(1, "wgmma", "f16", "full", 128, 128, 64, 64, 128, 64, 128, 6, 1, 1, 90, 128, **TMA)
WARPS = msgspec.structs.replace(WGMMA, mainloop="mma", tensor_threads=32, exact_capability=False, producer=False)
CLUSTER = msgspec.structs.replace(WGMMA, cluster_m=2)
