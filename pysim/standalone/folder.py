# SPDX-License-Identifier: Apache-2.0
"""Writes a plan's folder: plan.h, the sources that it needs, a test and a benchmark, a Makefile, a README and the licence.

The sources are the library's own, so the program computes the library's bits at its speed.
"""

import os
import re
import tempfile
from pathlib import Path

from pysim.errors import PlanError, ProblemError, printable, quoted
from pysim.explain.text import explain
from pysim.machine.gpu import Gpu
from pysim.problem.conv import Conv
from pysim.problem.dtypes import BY_NAME
from pysim.record.description import seconds_text
from pysim.record.plan import Plan
from pysim.registry.cpu import cpu_epilogues
from pysim.registry.cuda import epilogues
from pysim.registry.native_files import native_file
from pysim.runtime.foreign import POWER10
from pysim.standalone.cuda_sources import cuda_sources_of
from pysim.standalone.expression import Code, code_of
from pysim.standalone.header import header_of_cpu, header_of_cuda
from pysim.standalone.sources import Unit, algorithm_of, sources_of

_MAKEFILE = """\
# Builds and tests the plan: make test, make benchmark. RUN: what runs programs of another CPU here.
CFLAGS = -std=gnu11 -O3 -Wall -Wno-unknown-pragmas -Wno-psabi -Wno-unused-function -Wno-maybe-uninitialized
OBJECTS = {objects}

plan: $(OBJECTS)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ -pthread -lm

build/%.o: %.c plan.h native/standalone/plain.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -I. -Inative $(OWN) -c -o $@ $<
{own}
test: plan
	$(RUN) ./plan test
benchmark: test
	$(RUN) ./plan benchmark
clean:
	rm -rf build plan
.PHONY: test benchmark clean
"""
# Of the kernels of POWER10, on another computer
_TARGET = "__mma"
_CROSS = f"""; on a computer without POWER10

    make CC={POWER10.gcc} LDFLAGS=-static RUN="{POWER10.emulators[0]} {" ".join(POWER10.emulator_arguments)}" test"""
_CUDA_MAKEFILE = """\
# Builds and tests the plan: make test, make benchmark. For another GPU: make ARCH=80
NVCC = nvcc
ARCH = {arch}
CODE = -gencode=arch=compute_$(ARCH),code=sm_$(ARCH) -DPYSIM_GPU_ARCHS='"$(ARCH)"'
CFLAGS = -std=c++17 -O3 -diag-suppress=177{hopper}
OBJECTS = {objects}

plan: $(OBJECTS)
	$(NVCC) -cudart static -o $@ $^

build/%.o: %.cu plan.h native/standalone/plain.h
	@mkdir -p $(@D)
	$(NVCC) $(CFLAGS) $(CODE) -Inative/cuda -Inative -I. $(OWN) -c -o $@ $<
{own}
test: plan
	./plan test
benchmark: test
	./plan benchmark
clean:
	rm -rf build plan
.PHONY: test benchmark clean
"""
_README = """\
# {problem} on {machine}

    make test          # against plain loops in double
    make benchmark     # after the test; predicted: {seconds}
    ./plan run FIRST SECOND RESULT [BIAS]        # raw arrays; {operands}

A program uses the plan as `{main}` does: {use}. Building needs make and {needs}

| | |
|---|---|
| `plan.h` | problem, schedule{epilogue}, prediction |
| `{kernel}` | the kernel `{name}` |
| `{loops}` | {around} |
| `{entries}` | the entry points, which `{header}` declares |
| `{main}` | test, benchmark, runs on files |

Written by `pysim export` from the sources of pysim's own library, under its licence (LICENSE). The plan:

```
{explanation}
```
"""


def check_directory(directory: Path) -> None:
    """ProblemError unless the folder can be made, or is empty."""
    name = printable(str(directory))
    try:
        if directory.is_dir():
            if any(directory.iterdir()):
                raise ProblemError(f"{name} is not empty; expected a new or an empty folder")
        elif os.path.lexists(directory):
            raise ProblemError(f"{name} is a file; expected a new or an empty folder")
        elif not directory.parent.is_dir():
            raise ProblemError(f"{name} cannot be made: there is no folder {printable(str(directory.parent))}")
        if not os.access(directory if directory.is_dir() else directory.parent, os.W_OK):
            raise ProblemError(f"{name} cannot be written: permission denied")
    except (OSError, ValueError) as error:
        raise ProblemError(f"{name} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def write(plan: Plan, directory: Path, epilogue: str | None = None) -> list[str]:
    """Writes the plan's folder, and returns its files. `epilogue`: what becomes of a result x (pysim/standalone/expression.py).

    The folder is new or empty; if something fails, it stays as it was. Raises PlanError for an epilogue that is not understood, and
    ProblemError for a folder that cannot be written.
    """
    code = None if epilogue is None else _code(plan, epilogue)
    check_directory(directory)
    own = (" ".join(str(epilogue).split()), code) if code else None
    files = _files_of_cuda(plan, own) if isinstance(plan.on, Gpu) else _files_of_cpu(plan, own)
    try:
        with tempfile.TemporaryDirectory(dir=directory.resolve().parent) as scratch:
            made = Path(scratch) / "plan"
            for path, text in files.items():
                (made / path).parent.mkdir(parents=True, exist_ok=True)
                (made / path).write_text(text, encoding="utf-8")
            made.replace(directory.resolve())
    except OSError as error:
        raise ProblemError(f"{printable(str(directory))} cannot be written: {error.strerror}") from None
    return sorted(files)


def _code(plan: Plan, epilogue: str) -> Code:
    code = code_of(epilogue)
    dtype = plan.workload.dtype
    result = BY_NAME[dtype].gpu_results[0] if isinstance(plan.on, Gpu) else BY_NAME[dtype].cpu_result
    if result == "s32":
        raise PlanError(f"epilogue {quoted(epilogue)} is for floating-point results; those of {dtype} are whole numbers")
    return code


def _files_of_cpu(plan: Plan, epilogue: tuple[str, Code] | None) -> dict[str, str]:
    sources, number = sources_of(plan, epilogue is not None), len(cpu_epilogues())
    files = {f"native/{path}": text for path, text in sources.files.items()}
    if epilogue:
        files["native/epilogues.inc"] += f"PYSIM_EPILOGUE({number}, plan, 1, plan_epilogue(x))\n"
    files["main.c"] = native_file("standalone/main.c").read_text()
    files["plan.h"] = header_of_cpu(plan, sources.row, (*epilogue, number) if epilogue else None)
    files["Makefile"] = _makefile(sources.units)
    loops = next(unit.path for unit in sources.units if unit.path.startswith("algorithms/") and _defines(unit.path, plan))
    return files | _texts(plan, sources.kernel, loops, epilogue)


def _files_of_cuda(plan: Plan, epilogue: tuple[str, Code] | None) -> dict[str, str]:
    sources = cuda_sources_of(plan, epilogue[1] if epilogue else None)
    files = {f"native/{path}": text for path, text in sources.files.items()}
    files["main.cu"] = native_file("standalone/main.cu").read_text()
    files["plan.h"] = header_of_cuda(plan, (*epilogue, len(epilogues())) if epilogue else None)
    objects = ["build/main.o", *(f"build/native/cuda/{unit.path[:-3]}.o" for unit in sources.units)]
    own = [f"build/native/cuda/{unit.path[:-3]}.o: OWN = -DPYSIM_UNIT={unit.unit}\n" for unit in sources.units if unit.unit]
    assert isinstance(plan.on, Gpu)
    arch = f"{plan.on.capability_number}{'a' * (plan.on.capability_number == 90)}"
    hopper = " -DPYSIM_HOPPER" * sources.hopper
    files["Makefile"] = _CUDA_MAKEFILE.format(objects=_listed(objects), own="".join(own), arch=arch, hopper=hopper)
    return files | _texts(plan, sources.kernel, f"cuda/abi/{'conv' if isinstance(plan.workload, Conv) else 'gemm'}.cu", epilogue)


def _listed(objects: list[str]) -> str:
    return " \\\n  ".join(objects)


def _makefile(units: list[Unit]) -> str:
    objects = ["build/main.o", *(f"build/native/{unit.path[:-2]}.o" for unit in units)]
    own = []
    for unit in units:
        vectors = f"-DVECTORS='\"{unit.vectors}\"'" if unit.vectors else ""
        if words := " ".join(one for one in (unit.flags, vectors) if one):
            own.append(f"build/native/{unit.path[:-2]}.o: OWN = {words}\n")
    return _MAKEFILE.format(objects=_listed(objects), own="".join(own))


def _texts(plan: Plan, kernel: str, loops: str, epilogue: tuple[str, Code] | None) -> dict[str, str]:
    """README, licence, and the test's plain loops."""
    on_gpu = isinstance(plan.on, Gpu)
    layout = f"input and output {plan.layout.upper()}, filters {'MRSC' if plan.layout == 'nhwc' else 'MCRS'}"
    readme = _README.format(
        problem=plan.problem,
        machine=plan.machine,
        seconds=seconds_text(plan.seconds or 0.0),
        operands=layout if isinstance(plan.workload, Conv) else "A, B and C",
        use="call `pysim_cuda_run` on device memory"
        if on_gpu
        else "prepare the weights once, open the plan once, and run it as often as needed",
        main="main.cu" if on_gpu else "main.c",
        needs="nvcc." if on_gpu else f"a C compiler{_CROSS if _TARGET in plan.kernel else '.'}",
        epilogue=f", epilogue `{epilogue[0]}`" if epilogue else "",
        kernel=f"native/{kernel}",
        name=plan.kernel,
        loops=f"native/{loops}",
        around="checks, workspace and launch" if on_gpu else f"the loops of `{plan.algorithm}` around it",
        entries="native/cuda/abi/run.cu" if on_gpu else "native/abi/run.c",
        header="native/pysim_cuda.h" if on_gpu else "native/pysim.h",
        explanation=explain(plan),
    )
    plain = native_file("standalone/plain.h").read_text()
    return {"README.md": readme, "LICENSE": native_file("../LICENSE").read_text(), "native/standalone/plain.h": plain}


def _defines(path: str, plan: Plan) -> bool:
    return re.search(rf"pysim_algorithm_{algorithm_of(plan)} = ", native_file(path).read_text()) is not None
