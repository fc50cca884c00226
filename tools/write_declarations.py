# SPDX-License-Identifier: Apache-2.0
"""Writes declarations of `native/` as a Python module of cffi, which needs no parsing: python tools/write_declarations.py FILE

FILE has a name of `pysim.registry.native_files.HEADERS`. The build puts it beside the library; `ffi_beside` there reads it. Its last line
says of which text it was made.
"""

import sys
from pathlib import Path

import cffi

sys.path.insert(0, str(Path(__file__).parent.parent))
from pysim.registry.native_files import HEADERS, declarations, digest_of  # needs no other package


def main(to: Path) -> None:
    ffi, text = cffi.FFI(), declarations(*HEADERS[to.stem])
    ffi.set_source(to.stem, None)
    ffi.cdef(text)
    ffi.emit_python_code(str(to))
    with to.open("a") as out:
        out.write(f"declared = {digest_of(text)!r}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
