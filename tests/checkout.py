# SPDX-License-Identifier: Apache-2.0
"""Scripts of the checkout as modules."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent


def tool(name: str) -> ModuleType:
    """tools/NAME.py as a module."""
    if (folder := str(ROOT / "tools")) not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)
