# SPDX-License-Identifier: Apache-2.0
"""Models of what a loop nest costs on a memory hierarchy.

`cpu` derives cycles from a tiled loop nest and the caches under it, `gpu` from a launch of blocks; `shared_memory` counts bank
conflicts, `simulator` every access of a plan in exact caches. Importing this package imports none of them, and so no numpy.
"""

from importlib import import_module
from typing import Any

# name -> module, imported when the name is first used
_WHERE = {
    "Cache": "simulator.hierarchy",
    "Hierarchy": "simulator.hierarchy",
    "SharedMemory": "shared_memory.banks",
    "Wavefronts": "shared_memory.banks",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
