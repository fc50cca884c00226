# SPDX-License-Identifier: Apache-2.0
"""Plans convolutions and matrix products: algorithm, tiling and schedule for a machine, the predicted time and the reasons. Native kernels
run exactly that plan.

    y = pysim.conv2d(x, w, padding=1)                                     # plan, pack, run
    p = pysim.plan("conv:mb1ic64ih56oc64kh3ph1", machine="power10-e1050")  # a plan with its cost; print(p.explain())
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
_CONVOLUTIONS = ["conv1d", "conv1d_stream", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]
__all__ = ["PysimError", "compare", "conv1d", "conv1d_stream", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
           "conv_transpose3d", "export", "gemm", "load", "plan", "plans", "prepare"]  # fmt: skip

if TYPE_CHECKING:
    from pysim.api import compare, conv2d, gemm, plan, plans, prepare
    from pysim.convolutions import conv1d, conv1d_stream, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d
    from pysim.errors import PysimError
    from pysim.onnx.load import load
    from pysim.standalone import export

_ELSEWHERE = {"PysimError": "pysim.errors", "export": "pysim.standalone", "load": "pysim.onnx.load"} | dict.fromkeys(
    _CONVOLUTIONS, "pysim.convolutions"
)


def __getattr__(name: str) -> Any:
    """Imports public names when they are first used, so that `import pysim` alone is fast."""
    if name == "torch":  # needs PyTorch
        return import_module("pysim.torch")
    if name not in __all__:
        raise AttributeError(f"module 'pysim' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_ELSEWHERE.get(name, "pysim.api")), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
