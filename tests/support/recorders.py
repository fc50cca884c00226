# SPDX-License-Identifier: Apache-2.0
"""Native libraries that tests build to write down what loops and kernels load and store."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pysim.registry.native_files import declarations
from pysim.runtime.foreign import plain_units


def compiler() -> list[str]:
    """The C compiler's command; the test is skipped without one."""
    found = os.environ.get("CC", "cc").split()
    if shutil.which(found[0]) is None:
        pytest.skip(f"no C compiler {found[0]}: set CC")
    return found


def plain_sources(folder: Path) -> list[Path]:
    """The library in plain C: its files, and for each template and vector type a file in this folder that includes it. Loops that round
    once, which take as long to compile as half of the rest and which the library may lack, are left out."""
    found = []
    for at, (path, flags) in enumerate(plain_units()):
        if flags:
            vectors = flags[0].partition("=")[2]
            made = folder / f"{path.stem}_{at}.c"
            made.write_text(f'#define VECTORS {vectors}\n#include "templates/{path.name}"\n')
            found.append(made)
        elif path.stem not in {"worker", "loops_once"}:
            found.append(path)
    return found


def opened(path: Path, record: str) -> tuple[Any, Any]:
    """(ffi, lib) of a built library, whose accesses go to the struct of that name."""
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(declarations("pysim.h"))
    ffi.cdef(f"extern struct {{ int64_t room, n; int64_t *addresses; int32_t *sizes; uint8_t *is_write; }} {record};")
    return ffi, ffi.dlopen(str(path))
