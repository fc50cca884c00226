# SPDX-License-Identifier: Apache-2.0
"""What is installed beside the package: the manual page, completion by shells, and the CUDA kernels as a distribution of their own."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from checkout import ROOT
from command_line import cache, ok, own_files  # noqa: F401

from pysim.cli import COMMANDS, main
from pysim.errors import MissingError
from pysim.runtime.cpu import available_kernels

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_manual_page_is_what_its_script_writes() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import man_page
    finally:
        sys.path.pop(0)
    assert (ROOT / "docs" / "pysim.1").read_text() == man_page.page(), "python tools/man_page.py writes it"
    assert all(f".SS pysim {name}" in man_page.page() for name in COMMANDS)


@pytest.mark.usefixtures("own_files")
def test_shells_complete_commands_options_machines_and_sets() -> None:
    for shell in ("zsh", "fish", "bash"):
        assert "_PYSIM_COMPLETE" in ok("completion", shell)
    for words, wanted in (
        ("pysim pl", {"plan"}),
        ("pysim plan --expl", {"--explain"}),
        ("pysim plan resnet1", {"resnet18", "resnet152"}),
        ("pysim plan -m zen", {"zen3", "zen4", "zen5"}),
        ("pysim report -m h2", {"h200"}),
    ):
        complete = click.shell_completion.BashComplete(main, {}, "pysim", "_PYSIM_COMPLETE")
        *given, begun = words.split()[1:]
        assert {one.value for one in complete.get_completions(given, begun)} == wanted


def test_every_python_that_is_named_is_one_that_wheels_are_tested_with() -> None:
    named = {one.rpartition(" ")[2] for one in PROJECT["project"]["classifiers"] if "Python :: 3." in one}
    tested = PROJECT["tool"]["cibuildwheel"]["build"].partition("{")[2].partition("}")[0].split(",")
    assert named == {f"3.{minor}" for minor in tested}
    assert f">={min(named, key=lambda one: int(one[2:]))}" == PROJECT["project"]["requires-python"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 alone has several vector widths")
@pytest.mark.skipif(not all(map(shutil.which, ("meson", "ninja", "cc"))), reason="meson, ninja and a C compiler build it")
def test_a_build_for_this_computer_leaves_out_what_its_cpu_does_not_run(tmp_path: Path) -> None:
    built, compiled = {}, {}
    for targets in ("all", "host"):
        folder = tmp_path / targets
        setup = ("meson", "setup", folder, ROOT, "-Dcuda=disabled", f"-Dtargets={targets}")
        subprocess.run(setup, check=True, capture_output=True, timeout=250)
        found = json.loads((folder / "meson-info" / "intro-targets.json").read_text())
        names = {one["name"].removeprefix("pysim_").removeprefix("groups_") for one in found if one["type"] == "static library"}
        built[targets] = {name.partition("_")[0] for name in names}
        files = json.loads((folder / "compile_commands.json").read_text())
        compiled[targets] = {(one["output"].partition(".")[0].removeprefix("libpysim_"), Path(one["file"]).stem) for one in files}
    assert {"portable", "avx2", "avx512"} <= built["all"] and built["host"] <= built["all"]
    try:
        runs = {name.rpartition("__")[2] for name in available_kernels()}
    except MissingError:
        pytest.skip("the library, which knows what this CPU runs, is not here")
    assert runs <= built["host"] and ("avx512" in runs or "avx512" not in built["host"])
    plain_alone = {(f"portable_{dtype}", name) for dtype in ("f32", "f64") for name in ("loops", "winograd")} | {
        ("loops_once", "loops_once")
    }
    assert plain_alone <= compiled["all"]
    assert compiled["host"].isdisjoint(plain_alone) if "avx2" in runs else plain_alone <= compiled["host"]
    narrow = {one for one in compiled["all"] if one[0] in ("avx2_f32", "avx2_f64")}
    kept = {one for one in narrow if one[1] in ("polyphase", "skinny")} if "avx512" in runs else narrow
    assert len(kept) >= 4 and (compiled["host"] & narrow == kept if "avx2" in runs else True)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 alone has several vector widths")
@pytest.mark.skipif(not shutil.which("cc"), reason="a C compiler builds it")
@pytest.mark.parametrize("most", ["portable", "avx2"])
def test_narrow_vectors_alone_are_refused_where_their_operators_are_not_built(most: str, tmp_path: Path) -> None:
    """The table of kernels without operators in plain C and AVX2, as a build for this computer has it."""
    plain = [ROOT / "native" / name for name in ("abi/registry.c", "abi/status.c", "operators/operators.c", "portable/portable.c")]
    command = ["cc", "-shared", "-fPIC", "-w", "-I", ROOT / "native", *plain, "-o", tmp_path / "table.so"]
    stub = tmp_path / "integers.c"
    stub.write_text("char pysim_integers__portable;")
    subprocess.run([*command, stub], check=True, capture_output=True, timeout=250)
    text = """
import ctypes, sys
table = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL | 1)
loops = ctypes.c_void_p()
print([table.pysim_loops_of(dtype, ctypes.byref(loops)) != 0 for dtype in (0, 1)], table.pysim_loops_for(0))
table.pysim_last_error.restype = ctypes.c_char_p
print(table.pysim_last_error().decode())
"""
    run = [sys.executable, "-c", text, tmp_path / "table.so"]
    said = subprocess.run(run, env=os.environ | {"PYSIM_MAX_TARGET": most}, capture_output=True, text=True, check=False, timeout=250)
    assert said.stdout.splitlines()[0] == "[True, True] 0", said.stderr
    assert "PYSIM_MAX_TARGET" in said.stdout and "-Dtargets=all" in said.stdout


def test_the_cuda_kernels_are_found_in_a_distribution_of_their_own(tmp_path: Path) -> None:
    """A wheel with both libraries, divided and installed; the kernels here are four bytes."""
    wheelfile = pytest.importorskip("wheel.wheelfile")
    name = "pysim_planner-9.9-py3-none-manylinux_2_28_x86_64.whl"
    parts = {
        "pysim/__init__.py": (ROOT / "pysim" / "__init__.py").read_bytes(),
        "pysim/native/libpysim.so": b"CPU",
        "pysim/native/libpysim_cuda.so": b"CUDA",
        "pysim_planner-9.9.dist-info/METADATA": b"Metadata-Version: 2.4\nName: pysim-planner\nVersion: 9.9\n\nText",
        "pysim_planner-9.9.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-manylinux_2_28_x86_64\n",
    }
    with wheelfile.WheelFile(tmp_path / name, "w") as whole:
        for path, content in parts.items():
            whole.writestr(path, content)
    script = [sys.executable, ROOT / "tools" / "build" / "split_cuda.py", tmp_path / name, "-o", tmp_path / "divided"]
    made = subprocess.run(script, check=True, capture_output=True, text=True, timeout=250).stdout.split()
    assert [Path(one).name for one in made] == [name, "pysim_planner_cu13-9.9-py3-none-manylinux_2_28_x86_64.whl"]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--find-links", tmp_path / "divided", "--target", tmp_path / "site"]
    pip += ["--no-deps", "--disable-pip-version-check", *made]
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False).returncode:
        pytest.skip("needs pip")
    subprocess.run(pip, check=True, timeout=250)
    assert not (tmp_path / "site" / "pysim" / "native" / "libpysim_cuda.so").exists()
    assert (tmp_path / "site" / "pysim" / "native" / "libpysim.so").read_bytes() == b"CPU"
    metadata = (tmp_path / "site" / "pysim_planner_cu13-9.9.dist-info" / "METADATA").read_text()
    assert "Requires-Dist: pysim-planner==9.9" in metadata
    text = "from pysim.runtime import cuda; print(cuda.library_path().read_text())"
    given = {key: value for key, value in os.environ.items() if key not in ("PYSIM_CUDA_LIBRARY", "PYTHONSAFEPATH")}
    search = os.pathsep.join((str(ROOT), str(tmp_path / "site")))
    found = subprocess.run(
        [sys.executable, "-c", text],
        env=given | {"PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        timeout=250,
    )
    assert found.stdout.strip() == "CUDA"
