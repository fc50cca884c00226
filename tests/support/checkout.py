# SPDX-License-Identifier: Apache-2.0
"""Where the checkout's folders lie. Importing it makes these helpers, and scripts of lab/ and tools/, importable by their plain names."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parents[1]
PACKAGE, NATIVE, DATA = ROOT / "pysim", ROOT / "native", ROOT / "lab" / "data"
sys.path += [str(SUPPORT / "fakes"), str(SUPPORT / "networks"), str(ROOT / "tools"), str(ROOT / "lab")]
import rooms  # noqa: E402, F401


def tool(name: str) -> ModuleType:
    """A script of lab/ or tools/ by its name."""
    return importlib.import_module(name)
