# SPDX-License-Identifier: Apache-2.0
"""Native libraries that tests build to write down what loops and kernels load and store."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pysim.registry.files import declarations

NATIVE = Path(__file__).parent.parent / "native"


def compiler() -> list[str]:
    """The C compiler's command; the test is skipped without one."""
    found = os.environ.get("CC", "cc").split()
    if shutil.which(found[0]) is None:
        pytest.skip(f"no C compiler {found[0]}: set CC")
    return found


def opened(path: Path, record: str) -> tuple[Any, Any]:
    """(ffi, lib) of a built library, whose accesses go to the struct of that name."""
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(declarations("pysim.h"))
    ffi.cdef(f"extern struct {{ int64_t room, n; int64_t *addresses; int32_t *sizes; uint8_t *is_write; }} {record};")
    return ffi, ffi.dlopen(str(path))
