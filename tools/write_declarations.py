# SPDX-License-Identifier: Apache-2.0
"""Writes the declarations of `native/pysim.h` as a Python module of cffi, which needs no parsing: python tools/write_declarations.py FILE

The build puts it beside the library; `pysim.registry.native_files.ffi_beside` reads it. Its last line says of which text it was made.
"""

import sys
from pathlib import Path

import cffi

sys.path.insert(0, str(Path(__file__).parent.parent))
from pysim.registry.native_files import declarations, digest_of  # needs no other package


def main(to: Path) -> None:
    ffi, text = cffi.FFI(), declarations("pysim.h")
    ffi.set_source(to.stem, None)
    ffi.cdef(text)
    ffi.emit_python_code(str(to))
    with to.open("a") as out:
        out.write(f"declared = {digest_of(text)!r}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
