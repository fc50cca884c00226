# SPDX-License-Identifier: Apache-2.0
"""The files of `native/` that Python reads."""

import hashlib
import re
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pysim.errors import MissingError

_HERE = Path(__file__).parent
_EPILOGUE = re.compile(r"^PYSIM_EPILOGUE\((\d+),\s*(\w+),", re.MULTILINE)
_INCLUDE = re.compile(r'^#include "([\w/]+\.h)"$', re.MULTILINE)


def native_file(name: str) -> Path:
    """A file of `native/`: shipped beside this module, or in the source tree of a checkout."""
    shipped = _HERE.parent / "native" / name
    return shipped if shipped.exists() else _HERE.parent.parent / "native" / name


def declarations(*headers: str) -> str:
    """The declarations for cffi from headers of `native/`: the parts between their marks with what these include, concatenated."""
    parts = (native_file(name).read_text().partition("/* cdef begin */")[2].partition("/* cdef end */")[0] for name in headers)
    return _INCLUDE.sub(lambda found: native_file(found[1]).read_text(), "".join(parts))


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


HEADERS = {"pysim_declarations": ("pysim.h",), "pysim_cuda_declarations": ("pysim.h", "pysim_cuda.h")}  # of which each is written


def ffi_beside(library: Path, name: str) -> Any:
    """cffi with the declarations of HEADERS[name]: those that the build wrote beside the library (`tools/write_declarations.py`), or, where
    that file is missing, of another text or of a later cffi, parsed here, which takes 0.1 s."""
    text = declarations(*HEADERS[name])
    spec = spec_from_file_location(name, library.with_name(f"{name}.py"))
    if spec is not None and spec.loader is not None:
        written = module_from_spec(spec)
        try:
            spec.loader.exec_module(written)
            if written.declared == digest_of(text):
                return written.ffi
        except (OSError, ImportError, SyntaxError, AttributeError):
            pass
    import cffi

    ffi = cffi.FFI()
    ffi.cdef(text)
    return ffi


def epilogue_numbers(name: str) -> dict[str, int]:
    """The activations in a table of `native/`, name -> the ABI's number."""
    return {epilogue: int(number) for number, epilogue in _EPILOGUE.findall(native_file(name).read_text())}


def refuse_other_build(library: Path, its: Sequence[str], ours: Sequence[str], right: str) -> None:
    """MissingError unless the lines of a library's tables are those that this package has read: it names rows by their numbers."""
    if its == ours:
        return
    row, (its_row, our_row) = next((at, rows) for at, rows in enumerate(zip_longest(its, ours)) if rows[0] != rows[1])
    said = f"row {row} of its tables is {its_row or 'missing'}, of this package's {our_row or 'missing'}"
    raise MissingError(f"{library} is of another build than this package: {said}; {right}")
