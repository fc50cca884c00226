# SPDX-License-Identifier: Apache-2.0
"""The recipes of docs/design.md, followed: what they name is all that is needed."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from checkout import ROOT

from pysim import algorithms, planner
from pysim.algorithms import cpu
from pysim.errors import MissingError
from pysim.explain.text import explain
from pysim.runtime.cpu import available_kernels

try:
    TARGETS = {name.rpartition("__")[2] for name in available_kernels()}
except MissingError:
    TARGETS = set()

# What the recipe "add a kernel" asks for: file -> the line that its own line follows, and that line
KERNEL = {
    "native/kernels.inc": (
        "PYSIM_KERNEL(target(avx2),     dtype(f32),  form(win),   windows(16),  filters(6),   lane_windows(8),  lane_filters(1))",
        "PYSIM_KERNEL(target(avx2), dtype(f32), form(win), windows(16), filters(4), lane_windows(8), lane_filters(1))",
    ),
    "native/x86/avx2_f32.c": ("DEFINE_WIN(f32_win_16x6__avx2, 6)", "DEFINE_WIN(f32_win_16x4__avx2, 4)"),
}
NEW = "f32_win_16x4__avx2"
USE = f"""
import pysim
from pysim.runtime import cpu
assert "{NEW}" in cpu.available_kernels()
assert "{NEW}" in [plan.kernel for plan in pysim.plans("conv:ic32ih30oc4kh3ph0", "zen4", top=1000)]
assert pysim.plan("gemm:4x16x64", "zen4", micro_kernel=(16, 4)).kernel == "{NEW}"
"""

# What the recipe "add a GPU algorithm" asks for beside the folder, which is that of the algorithm `direct` with another name
GPU_MODULE = '''
"""A thread computes an output, as an example: the algorithm `direct` of another name."""
from pysim.algorithms.convolution import Rows
from pysim.algorithms.gpu.direct import Direct

ALGORITHM = Rows("example", Direct, "example: a thread computes an output")
'''
GPU_LINE = "PYSIM_CUDA_CONV(example, any, all)\n"
GPU_USE = """
import numpy as np
from pysim import planner
from pysim.check.reference import as_result, reference, shapes
from pysim.explain.text import explain
from pysim.problem.text import parse
from pysim.runtime import cuda

problem = parse("conv:g2mb2ic6ih9iw7oc4kh3ph1sh2")
plan = planner.plan(problem, "h200", algorithm="example")
assert (plan.algorithm, plan.kernel) == ("example", "f32_example") and "a thread computes an output" in explain(plan)
assert planner.plan(problem, "h200", name=plan.name).algorithm == "example"
draw, sizes, out = np.random.default_rng(1), shapes(problem), np.full(shapes(problem).out, np.nan, np.float32)
x, w = (draw.integers(-3, 4, size).astype(np.float32) for size in sizes[:2])
cuda.Launch(problem, plan.launch).on((x.ctypes.data, w.ctypes.data, out.ctypes.data)).run()
np.testing.assert_array_equal(out, as_result(reference(problem, x, w), out.dtype))
"""

MODULE = '''
"""A convolution by tiles that are never packed, as an example: SConv's nest of another name that promises a tenth of the time."""
from pysim.algorithms.cpu.sconv import COMPUTES, candidates, describe, largest_part, prepare, refuses, tolerance, workspace_bytes
from pysim.cachemodel.cpu import nest_schedules

NAME = "example"


def cost(machine, found):
    return [one._replace(cycles=one.cycles / 10) for one in nest_schedules.cost(machine, found)]
'''


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One module more in the folder of the CPU's algorithms."""
    (tmp_path / "example.py").write_text(MODULE)
    monkeypatch.setattr(cpu, "__path__", [*cpu.__path__, str(tmp_path)])
    algorithms._folder.cache_clear()
    planner.forget()
    yield
    algorithms._folder.cache_clear()
    planner.forget()


@pytest.mark.usefixtures("example")
def test_a_module_in_the_folder_is_an_algorithm_that_is_planned_explained_and_named() -> None:
    plan = planner.plan("conv:mb1ic64ih56oc64kh3ph1", "zen4")
    assert plan.algorithm == "example"
    assert "example" in {item.algorithm for item in plan.considered}
    assert "example:" in explain(plan)
    assert planner.plan("conv:mb1ic64ih56oc64kh3ph1", "zen4", name=plan.name).algorithm == "example"
    assert planner.plan("conv:mb1ic64ih56oc64kh3ph1", "zen4", algorithm="sconv").algorithm == "sconv"


def test_without_it_nobody_knows_of_it() -> None:
    assert planner.plan("conv:mb1ic64ih56oc64kh3ph1", "zen4").algorithm != "example"


needs_a_compiler = pytest.mark.skipif(
    not all(map(shutil.which, ("meson", "ninja", "gcc", "g++"))), reason="meson, ninja and gcc build the copy"
)
Run = Callable[..., str]
QUICK = ("build", "-Dtests=true", "-Dcuda=disabled", "-Ddebug=false", "-Doptimization=0")  # compiles in a quarter of the time


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command in a copy of the tree."""
    for name in ("native", "pysim", "lab"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "data"))
    shutil.copytree(ROOT / "pysim" / "machine" / "data", tmp_path / "pysim" / "machine" / "data")
    for name in ("docs", "tools"):
        (tmp_path / name).mkdir()
    for name in ("meson.build", "meson.options", "LICENSE", "docs/pysim.1", "tools/write_declarations.py"):
        shutil.copy(ROOT / name, tmp_path / name)

    def run(*command: str, **more: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, env=os.environ | more)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def leave_out_what_is_tested_elsewhere(tree: Path) -> None:
    """What the new kernel does not need of what is there for AVX2 and for f64 in plain C: the library that all other tests use has it."""
    for table in ("depthwise", "direct_nchwc", "integers", "loops", "skinny", "winograd"):
        without(tree / f"native/{table}.inc", r"(?m)^PYSIM_\w+\((?:target\()?avx2\b.*\n")
    ours = (
        r", 'avx2_f64': \[.*?\]",
        r", 'portable_f64': \[\[\], .*?\]",
        r"\n *'(?:avx2_s8|avx2_bounded_s8|avx2_bf16|avxvnni_s8|avx512vnni_pairs_s8|amx_emulated_\w+)': \[.*",
        r"\n *plain_units \+= .*",
    )
    for part in (*ours, r",\s+'native/x86/depthwise_avx2_f32.c',\s+'native/x86/depthwise_avx2_f64.c'"):
        without(tree / "meson.build", part)
    if "avx512" in TARGETS:  # elsewhere nothing else compiles these; AMX packs by the rest
        for part in (r"\n *'avx512_f32': \[.*", r",\s+'native/x86/depthwise_avx512_f32.c'(?s:.*?)half_f32.c'"):
            without(tree / "meson.build", part)


def without(file: Path, part: str) -> None:
    text, count = re.subn(part, "", file.read_text())
    assert count, part
    file.write_text(text)


@pytest.mark.timeout(1000)  # it compiles what this CPU does not run, too, on a machine that may be busy
@needs_a_compiler
@pytest.mark.skipif("avx2" not in TARGETS, reason="the library is not here, or this CPU lacks AVX2")
def test_a_line_and_a_definition_are_a_kernel_that_is_checked_and_planned(tmp_path: Path, run: Run) -> None:
    """The native tree with both."""
    leave_out_what_is_tested_elsewhere(tmp_path)
    for name, (after, line) in KERNEL.items():
        text = (tmp_path / name).read_text()
        assert text.count(after) == 1
        (tmp_path / name).write_text(text.replace(after, f"{after}\n{line}"))
    run("meson", "setup", *QUICK)
    run("ninja", "-C", "build", "libpysim.so", "check")
    run("build/check", "--kernel", NEW, "--quick")
    run(sys.executable, "-c", USE, PYTHONPATH=str(tmp_path), PYSIM_LIBRARY=str(tmp_path / "build" / "libpysim.so"))


def keep_few_rows(cuda: Path) -> None:
    """Of the tables of GPU kernels only the first row of each type and variant, so that they compile in a minute."""
    for table in cuda.glob("*/*/rows.inc"):
        kept: dict[tuple[str, ...], str] = {}
        for line in table.read_text().splitlines(keepends=True):
            row = ("row", *re.findall(r"(?:dtype|variant) = (\S+?)[,)]", line))
            kept.setdefault(row if line.startswith("PYSIM_CUDA_ROW") else (line,), line)
        table.write_text("".join(kept.values()))


@pytest.mark.timeout(1000)
@needs_a_compiler
@pytest.mark.skipif("avx2" not in TARGETS, reason="the library is not here, or this CPU runs no emulated kernels")
def test_a_folder_a_module_and_a_line_are_a_gpu_algorithm_that_is_checked_planned_and_run(tmp_path: Path, run: Run) -> None:
    cuda = tmp_path / "native" / "cuda"
    keep_few_rows(cuda)
    # Other convolutions, half of what compiles, and what the machine says of them: the library that all other tests use has them
    without(cuda / "families.inc", r"(?m)^PYSIM_CUDA_CONV\((?!direct,).*\n")
    without(tmp_path / "pysim/machine/data/h200.toml", r"(?m)^\[model\.families\.conv_(?!direct).*\n(?:[^\[\n].*\n|\n)*")
    (tmp_path / "pysim/algorithms/gpu/example.py").write_text(GPU_MODULE)
    (cuda / "conv/example").mkdir()
    for direct in (cuda / "conv/direct").iterdir():
        lines = direct.read_text().splitlines(keepends=True)
        lines = [line for line in lines if not (line.startswith("PYSIM_CUDA_ROW") and "tiled" in line)]
        (cuda / "conv/example" / direct.name.replace("direct", "example")).write_text("".join(lines).replace("direct", "example"))
    with (cuda / "families.inc").open("a") as table:
        table.write(GPU_LINE)
    run("meson", "setup", *QUICK)
    run("meson", "compile", "-C", "build", "check_conv_emulated", "pysim_cuda_emulated")
    run("build/native/cuda/check_conv_emulated", "--kernel", "example")
    library = tmp_path / "build/native/cuda/libpysim_cuda_emulated.so"
    run(sys.executable, "-c", GPU_USE, PYTHONPATH=str(tmp_path), PYSIM_CUDA_LIBRARY=str(library))


def test_an_operator_runs_natively_by_a_line_in_two_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx = pytest.importorskip("onnx")
    import numpy as np

    from pysim import load
    from pysim.network import operators
    from pysim.network.graph import Node
    from pysim.network.numpy_ops.operators import DEFINED
    from pysim.onnx.lowering.operators import LOWER

    of, name, x = onnx.helper, "ThresholdedRelu", np.array([[-1.0, 1, 2]], np.float32)
    ends = [of.make_tensor_value_info(end, onnx.TensorProto.FLOAT, x.shape) for end in "xy"]
    graph = of.make_graph([of.make_node(name, ["x"], ["y"], alpha=1.0)], "g", ends[:1], ends[1:])
    onnx.save(of.make_model(graph, opset_imports=[of.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")

    def result() -> list[float]:
        found: list[float] = load(tmp_path / "model.onnx")(x)[0].tolist()
        return found

    assert result() == [0, 0, 2]
    monkeypatch.setitem(operators.NATIVE, name, operators.NATIVE["Relu"])  # as another function, to tell it by its result
    monkeypatch.setitem(operators.OPERATORS, name, operators._natively(name))
    assert result() == [0, 0, 2], "NATIVE alone changes something"
    monkeypatch.setitem(LOWER, name, lambda node, *_: Node(node.op, node.name, node.inputs, node.outputs))
    assert result() == [0, 1, 2]
    monkeypatch.delitem(LOWER, name)
    monkeypatch.setitem(DEFINED, name, lambda node, opset: lambda inputs: [inputs[0] + 1])
    assert result() == [0, 2, 3]
