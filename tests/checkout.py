# SPDX-License-Identifier: Apache-2.0
"""Scripts of the checkout as modules: those of lab/ and tools/ can be imported once this is."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
DATA = ROOT / "lab" / "data"
sys.path += [str(ROOT / "tools"), str(ROOT / "lab")]
import rooms  # noqa: E402, F401


def tool(name: str) -> ModuleType:
    """A script of lab/ or tools/ by its name."""
    return importlib.import_module(name)
