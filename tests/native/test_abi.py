# SPDX-License-Identifier: Apache-2.0
"""The ABI: pinned per version, the same for the compiler and for cffi, nothing else exported, one registry for both sides."""

import hashlib
import re
import shutil
import subprocess
from functools import partial

import numpy as np
import pytest
from fake_gpu import cuda_ffi
from guarded import guarded

from pysim.errors import MissingError, PysimError
from pysim.registry import cpu as registry
from pysim.registry import cuda as cuda_registry
from pysim.registry.cpu import cpu_kernels
from pysim.registry.native_files import declarations as declared_by
from pysim.registry.native_files import native_file
from pysim.runtime import cpu as runtime
from pysim.runtime import cuda

try:
    FFI, LIB = runtime.library()
except MissingError as error:
    pytest.skip(str(error), allow_module_level=True)


def declarations(*headers: str) -> str:
    """The declarations without comments and blanks."""
    return " ".join(re.sub(r"/\*.*?\*/", " ", declared_by(*headers or ("pysim.h", "pysim_cuda.h")), flags=re.DOTALL).split())


def declared() -> set[str]:
    return set(re.findall(r"\b(pysim_\w+)\(", declarations()))


@pytest.mark.parametrize("header", ["pysim.h", "pysim_cuda.h"])
def test_each_header_has_the_number_of_its_declarations(header):
    """Of released ones a change is a new version as well."""
    text = re.sub(r"#define PYSIM_(CUDA_)?DECLARATIONS \w+", "", declarations(header))
    number = re.search(r"#define PYSIM_(?:CUDA_)?DECLARATIONS (\w+)", declarations(header))
    assert number and number[1] == "0x" + hashlib.sha256(text.encode()).hexdigest()[:8]


def test_the_library_exports_exactly_what_the_header_declares():
    if not shutil.which("nm"):
        pytest.skip("nm (binutils) is not installed")
    listed = subprocess.run(["nm", "-D", "--defined-only", runtime.library_path()], capture_output=True, text=True, check=True).stdout
    exported = {line.split()[-1].partition("@")[0] for line in listed.splitlines()}
    assert exported == {name for name in declared() if not name.startswith("pysim_cuda_")}


def test_the_cuda_library_exports_the_cuda_functions_alone():
    try:
        path = cuda.library_path()
    except MissingError as error:
        pytest.skip(str(error))
    if not shutil.which("nm"):
        pytest.skip("nm (binutils) is not installed")
    listed = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    exported = {line.split()[-1].partition("@")[0] for line in listed.splitlines()}
    assert {name for name in exported if name.startswith("pysim_")} == {name for name in declared() if name.startswith("pysim_cuda_")}


def test_the_compiler_and_cffi_see_the_same_structs(tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    names = re.findall(r"\} (pysim_\w+);", declarations())
    assert len(names) >= 10
    lines = [f'printf("{name} %zu %zu\\n", sizeof({name}), _Alignof({name}));' for name in names]
    source = tmp_path / "sizes.c"
    source.write_text('#include <stdio.h>\n#include "pysim_cuda.h"\nint main(void) {' + "".join(lines) + "}\n")
    program = tmp_path / "sizes"
    subprocess.run([compiler, "-I", native_file("pysim.h").parent, source, "-o", program], check=True)
    ffi = cuda_ffi()
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    for line in printed.splitlines():
        name, size, alignment = line.split()
        assert (ffi.sizeof(name), ffi.alignof(name)) == (int(size), int(alignment)), name


def test_python_and_the_library_list_the_same_kernels():
    info = FFI.new("pysim_kernel_info *")
    assert LIB.pysim_kernel_count() == len(cpu_kernels())
    for row in cpu_kernels():
        runtime.check(LIB.pysim_kernel_at(row.index, info))
        seen = (FFI.string(info.name), FFI.string(info.target), FFI.string(info.form))
        assert seen == (row.name.encode(), row.target.encode(), row.form.encode())
        sizes = (info.windows, info.filters, info.lane_windows, info.lane_filters)
        assert sizes == (row.windows, row.filters, row.lane_windows, row.lane_filters)


def exchanged(table):
    """The first two entries of a table with each other's numbers."""
    if isinstance(table, dict):
        first, second, *rest = table.items()
        return {first[0]: second[1], second[0]: first[1], **dict(rest)}
    return (table[1], table[0], *table[2:])


OTHER_BUILD = r"another build than this package: row \d+ of its tables is (\w+.*), of this package's (\w+)"


@pytest.mark.parametrize("table", ["cpu_kernels", "algorithms", "cpu_epilogues", "rows_kinds"])
def test_a_library_that_numbers_other_things_is_refused_as_it_is_opened(table, monkeypatch):
    monkeypatch.setattr(registry, table, partial(exchanged, getattr(registry, table)()))
    with pytest.raises(MissingError, match=OTHER_BUILD):
        runtime.library.__wrapped__()


@pytest.mark.parametrize("table", ["gemm_kernels", "conv_kernels", "epilogues"])
def test_a_cuda_library_that_numbers_other_things_is_refused(table, emulated, monkeypatch):
    monkeypatch.setattr(cuda_registry, table, partial(exchanged, getattr(cuda_registry, table)()))
    with pytest.raises(MissingError, match=OTHER_BUILD):
        cuda.library.__wrapped__()


def test_names_are_built_from_columns_and_are_unique():
    names = [row.name for row in cpu_kernels()]
    assert len(set(names)) == len(names)
    forms = "win|fil|groups|fused|chain|outer|tiles|pairs|bounded|pixels|unpacked"
    forms += "|rows|planes|blocks|taps|axpy|dot|phases|nchwc|last|grouped"
    assert all(
        re.fullmatch(rf"(f32|f64|bf16|s8)_({forms})_\d+x\d+__(avx512|avx512vnni|avx512bf16|avxvnni|avx2|amx|mma|portable)", name)
        for name in names
    )


def test_a_refused_call_leaves_its_sentence_and_the_next_one_works():
    info = FFI.new("pysim_kernel_info *")
    assert LIB.pysim_kernel_at(-1, info) == LIB.PYSIM_BAD_ARGUMENT
    assert b"-1" in FFI.string(LIB.pysim_last_error())
    assert LIB.pysim_kernel_at(0, info) == LIB.PYSIM_OK


def test_a_row_of_a_target_that_nothing_is_packed_for_is_refused(tmp_path, monkeypatch):
    for table in ("kernels.inc", "depthwise.inc"):
        text = native_file(table).read_text()
        (tmp_path / table).write_text(text.replace("PYSIM_DIRECT(target(avx512)", "PYSIM_DIRECT(target(avx521)", 1))
    monkeypatch.setattr(registry, "native_file", lambda name: tmp_path / name)
    with pytest.raises(PysimError, match=r'depthwise\.inc: .*__avx521: nothing packs for "avx521 f32"; did you mean "avx512 f32"'):
        registry._rows.__wrapped__("depthwise.inc")


def test_a_row_of_a_form_that_no_kernel_has_is_refused(tmp_path, monkeypatch):
    (tmp_path / "kernels.inc").write_text(native_file("kernels.inc").read_text().replace("form(outer)", "form(outre)", 1))
    monkeypatch.setattr(registry, "native_file", lambda name: tmp_path / name)
    with pytest.raises(PysimError, match=r'kernels\.inc: f32_outre_.*: no form is named "outre"; did you mean "outer"'):
        registry._rows.__wrapped__("kernels.inc")


SIZES = (0, 1, 7, 8, 9, 31, 32, 1017, 1024, 1025, 1031, 4096, 5000)


@pytest.mark.parametrize("whole", [8, 1024, 1 << 20])
def test_fingerprints_read_no_byte_outside_of_their_blocks(whole):
    """Each ends at a page that nobody may read, and begins anywhere."""
    blocks = [guarded(np.arange(size, dtype=np.uint8)) for size in SIZES]
    fingerprints = runtime.Fingerprints([one.ctypes.data for one in blocks], [one.nbytes for one in blocks], whole)
    fingerprints.changed()
    assert fingerprints.changed() == []
    for at, one in enumerate(blocks):
        one[...] += 1
        assert fingerprints.changed() == ([at] if one.size else [])
    blocks[2][0], blocks[9][-1] = 99, 99
    assert fingerprints.changed() == [2, 9]
    assert fingerprints.changed() == []


@pytest.mark.parametrize("size", [1, 13, 250, 1024])
def test_fingerprints_of_small_blocks_tell_each_byte(size):
    memory = np.zeros(size, np.uint8)
    fingerprints = runtime.Fingerprints([memory.ctypes.data], [size])
    fingerprints.changed()
    for at in range(size):
        memory[at] ^= 1
        assert fingerprints.changed() == [0], at


def test_fingerprints_tell_swapped_words_and_samples_of_large_blocks():
    memory = np.arange(1 << 16)
    fingerprints = runtime.Fingerprints([memory.ctypes.data], [memory.nbytes])
    fingerprints.changed()
    memory[:] = memory[::-1].copy()
    assert fingerprints.changed() == [0]
    small = np.arange(16)
    fingerprints = runtime.Fingerprints([small.ctypes.data], [small.nbytes])
    fingerprints.changed()
    for at, other in ((0, 1), (0, 4), (3, 15)):
        small[[at, other]] = small[[other, at]]
        assert fingerprints.changed() == [0]
    memory = np.zeros(1 << 16, np.uint8)
    fingerprints = runtime.Fingerprints([memory.ctypes.data], [memory.nbytes])
    fingerprints.changed()
    for part in np.split(memory, 16):
        part += 1
        assert fingerprints.changed() == [0]


def test_fingerprints_without_blocks_or_memory_are_refused():
    assert runtime.Fingerprints([], []).changed() == []
    with pytest.raises(PysimError, match="block 1 has no memory"):
        runtime.Fingerprints([0, 0], [0, 8]).changed()
    assert LIB.pysim_fingerprints(-1, FFI.NULL, FFI.NULL, 8, FFI.NULL, FFI.NULL, FFI.new("int64_t *")) == LIB.PYSIM_BAD_ARGUMENT
    assert b"fingerprints need blocks" in FFI.string(LIB.pysim_last_error())
