# SPDX-License-Identifier: Apache-2.0
"""Models of what a loop nest costs on a memory hierarchy.

`nest` is the loop nest that convolutions and matrix products share, `csa` SConv's slicing analysis in exact integers, `cost` the
full model in cycles. Importing this package imports none of them, and so no numpy.
"""

from importlib import import_module
from typing import Any

# name -> module, imported when the name is first used
_WHERE = {"Cache": "hierarchy", "Hierarchy": "hierarchy", "SharedMemory": "banks", "Wavefronts": "banks"}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
