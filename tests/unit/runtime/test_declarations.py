# SPDX-License-Identifier: Apache-2.0
"""The declarations that the build writes are those of the headers; others are not used."""

import subprocess
import sys

import pytest
from checkout import ROOT

from pysim.registry.native_files import HEADERS, ffi_beside
from pysim.runtime.cpu import library_path


@pytest.fixture(params=HEADERS)
def name(request):
    return request.param


@pytest.fixture
def beside(tmp_path, name):
    """A path of a library, and the declarations written beside it."""
    written = tmp_path / f"{name}.py"
    subprocess.run([sys.executable, ROOT / "tools" / "write_declarations.py", written], check=True)
    return tmp_path / "libpysim.so", written


def structs(ffi):
    kinds = {name: ffi.typeof(name) for name in ffi.list_types()[0]}
    found = {name: kind for name, kind in kinds.items() if kind.kind == "struct"}
    return {name: (ffi.sizeof(kind), [(field, one.offset) for field, one in kind.fields]) for name, kind in found.items()}


def is_parsed(ffi):
    return type(ffi).__module__ == "cffi.api"


def test_written_declarations_are_those_of_the_headers_and_open_the_library(beside, tmp_path, name):
    written, parsed = ffi_beside(beside[0], name), ffi_beside(tmp_path / "elsewhere" / "libpysim.so", name)
    assert not is_parsed(written) and is_parsed(parsed)
    assert structs(written) == structs(parsed)
    ours, theirs = (ffi.dlopen(str(library_path())) for ffi in (written, parsed))
    assert dir(ours) == dir(theirs) and ours.pysim_abi_version() == ours.PYSIM_ABI_VERSION == theirs.PYSIM_ABI_VERSION


@pytest.mark.parametrize("text", ["", "raise ImportError('a later cffi')", "ffi = 1\ndeclared = 'of another text'", "ffi = ("])
def test_declarations_of_another_text_are_not_used(beside, text, name):
    beside[1].write_text(text)
    assert is_parsed(ffi_beside(beside[0], name))
