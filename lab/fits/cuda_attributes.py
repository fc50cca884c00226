#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes pysim/registry/kernel_attributes-sm90.json: threads, registers, shared memory and local memory of every CUDA kernel for matrix
products, and of the wgmma convolutions.

    cuda_attributes.py libpysim_cuda.so [--cuobjdump PATH]        (or object files) registers and stack, from `cuobjdump -res-usage`
    lab/fits/cuda_attributes.py --measured planner.json                    all four, as the library reports them on a device

The first form needs no device. The instantiations of a kernel (layouts, result types) share a line of the registry, which gets the
largest value. Threads and shared memory are set at the launch and follow from the registry's columns (`pysim.cachemodel.gpu.mainloop`).
Efficiencies written by lab/fits/fit_gpu.py are kept, and so are kernels that are not in the given files.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from pysim.algorithms.gpu.winograd import Winograd
from pysim.cachemodel.gpu.mainloop import estimated
from pysim.cachemodel.gpu.product_columns import estimate, product_tiles
from pysim.problem.dtypes import SIZES
from pysim.record.plan import LAYOUTS
from pysim.registry.cuda import Attributes, ConvKernel, GemmKernel, Tiles, attributes_file, conv_kernels, gemm_kernels

CAPABILITY = 90
# pysim_dtype in templates of wgmma; types of the others
NUMBERS = {"f16": "2", "bf16": "3", "s8": "4", "tf32": "6", "f8": "7", "tf32x3": "8"}
THIRDS = "16"  # f32 as products of bf16 thirds (native/cuda/mainloop/wgmma/shape.h)
TYPES = {"f32": "float", "f64": "double", "f16": "__half", "bf16": "__nv_bfloat16", "tf32": "float", "tf32x3": "float", "s8": "signed char"}
EMPTY = 8  # registers that a kernel has at most which other rows replace there: it is compiled to nothing
FITTED = ("efficiency",)  # what lab/fits/fit_gpu.py adds
WINOGRAD = {"reference": 0, "sts64": 1, "compact": 2}  # native/cuda/conv/winograd/winograd.h


def shape_of(k: Tiles) -> str:
    """A SIMT kernel's tiles as its template has them."""
    sizes = (k.rows, k.columns, k.depth, k.warp_rows, k.warp_columns, k.thread_rows, k.thread_columns, k.stages)
    form = 0 if k.vectors and k.spread else 2 if k.vectors else 1
    return f"simt::Shape<pysim::simt::{k.dtype.upper()}, (pysim::simt::Form){form}, {', '.join(map(str, sizes))}, "


def patterns(row: ConvKernel) -> list[str]:
    """What the names of a convolution's main kernels contain, each in both layouts; nothing for kernels without tiles."""
    if row.outputs > 1 and not row.staged:
        if row.variant in WINOGRAD:
            return [f"fused_kernel<(pysim::winograd::Form){WINOGRAD[row.variant]},"]
        filters = {"single": "Weights", "drained": "Drained"}.get(row.variant, "Transformed")
        return [f"fused4_kernel<{loads}, pysim::winograd::fused4::{filters}" for loads in ("true, 1", "false, 1", "false, 2", "false, 4")]
    if not row.block_k:
        return []
    if row.tiles.by_warpgroups:
        return [pattern(row.tiles.transposed, "", "Gathered")]
    products = [product_tiles(row, layout) for layout in LAYOUTS]
    if row.staged:
        return [f"stage_products<pysim::{shape_of(product)}" for product in products]
    implicit = row.algorithm == "implicit"
    taken = ["Along<{0}", *["Across<{0}"] * (implicit or row.fused)]
    taken += ["Columns", "Rows"] * implicit
    knows = "pysim::gather::Divided" if implicit and row.variant == "full" else "pysim::gather::Listed"
    return [
        f"gather::kernel<pysim::{shape_of(product)}, {('false', 'true')[nhwc]}, pysim::gather::{windows.format(knows)}"
        for nhwc, product in enumerate(products)
        for windows in taken
    ]


def pattern(k: Tiles, mainloop: str, operands: str = "Matrices", sum_bytes: int = 4) -> str:
    """What the demangled name of a kernel's instantiations contains; `operands`: of wgmma's, those of what they multiply."""
    if k.by_warpgroups:
        number = THIRDS if k.thirds else NUMBERS[k.dtype]
        return f"wgmma_kernel<pysim::hopper::Shape<{number}, {k.rows}, {k.columns}, {k.warp_rows}, {k.warp_columns}, " + (
            f"{k.stages}, {k.cluster_rows}, {k.cluster_columns}, {k.promotion}, {str(k.pingpong).lower()}, "
            f"{k.depth // k.taps * SIZES[k.dtype]}, {k.taps}>, "
            f"pysim::hopper::{operands}>"
        )
    if k.k_warps > 1 and k.tensor:
        return f"thirds_kernel<{k.rows}, {k.columns}, {k.k_warps}>"
    if k.k_warps > 1:
        return f"streamed_kernel<{TYPES[k.dtype]}, {k.rows}, {k.columns}, {k.threads}>"
    if not k.tensor:
        return f"simt::kernel<pysim::{shape_of(k)}"
    sizes = (k.rows, k.columns, k.depth, k.warp_rows, k.warp_columns, k.stages)
    if mainloop == "mma" and k.dtype != "f64":
        return f"mma_kernel<pysim::mma_sync::Row<{TYPES[k.dtype]}, {', '.join(map(str, sizes))}, {k.promotion}, "
    first = TYPES[k.dtype] if mainloop == "mma" else "__half" if sum_bytes == 2 else "float"
    return f"{mainloop}_kernel<{first}, {', '.join(map(str, sizes))}, "


def place(kernel: GemmKernel) -> str:
    """What of a SIMT kernel's template follows its tiles."""
    return f"{kernel.below}, {kernel.replaced_on}, {kernel.reduces_in_cluster}>" if kernel.mainloop == "simt" else ""


def usage(library: Path, cuobjdump: str) -> dict[str, tuple[int, int]]:
    """(registers, bytes of stack) by demangled name."""
    listed = subprocess.run([cuobjdump, "-res-usage", library], capture_output=True, text=True, check=False)
    if listed.returncode:
        sys.exit(f"{cuobjdump} -res-usage {library}: {listed.stderr.strip() or 'it failed'}")
    plain = subprocess.run(["c++filt"], input=listed.stdout, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"Function (.*):\n\s*REG:(\d+) STACK:(\d+)", plain)
    return {name: (int(registers), int(stack)) for name, registers, stack in found}


def from_libraries(libraries: list[Path], cuobjdump: str, convolutions: bool) -> dict[str, Attributes]:
    found, missing, functions = {}, [], {}
    for library in libraries:
        functions |= usage(library, cuobjdump)
    wanted = [
        (kernel.name, estimated(kernel.tiles), [pattern(kernel.tiles, kernel.mainloop, sum_bytes=kernel.sum_bytes) + place(kernel)])
        for kernel in gemm_kernels()
        if not (convolutions or kernel.dense)  # whose kernels are those of convolutions
    ]
    for row in conv_kernels():
        taken = Winograd.estimate(row) if row.outputs > 1 else estimate(row)
        wanted.append((row.name, taken, patterns(row)))
    for name, taken, some in wanted:
        own = [one for function, one in functions.items() if any(contained in function for contained in some)]
        if not own:
            missing += [name] if some else []
            continue
        registers, stack = (max(column) for column in zip(*own, strict=True))
        found[name] = msgspec.structs.replace(taken, registers=registers, local_bytes=stack)
    if missing:
        print(f"not there are {len(missing)} kernels: {', '.join(missing)}", file=sys.stderr)
    return found


def write(target: Path, document: dict[str, Any]) -> None:
    """Writes a file of attributes, one kernel a line."""
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in document["kernels"].items())
    head = json.dumps({name: one for name, one in document.items() if name != "kernels"}, indent=1).removesuffix("\n}")
    target.write_text(f'{head},\n "kernels": {{\n{rows}\n }}\n}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", type=Path, nargs="*")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    parser.add_argument("--convolutions", action="store_true", help="leave the products' lines as they are")
    parser.add_argument("--measured", type=Path, help="a file that lab/benchmarks/cuda/planner.py wrote")
    options = parser.parse_args()
    if bool(options.libraries) == bool(options.measured):
        parser.error("give a library, or --measured with a file")
    if options.libraries:
        found = from_libraries(options.libraries, options.cuobjdump, options.convolutions)
        source = "cuobjdump -res-usage; threads and shared memory from the columns"
    else:
        document = json.loads(options.measured.read_text())
        found = {name: msgspec.convert(one, Attributes) for name, one in document["attributes"].items() if one}
        source = f"pysim_cuda_attributes_of on {document['device']['name']}"
    target = attributes_file(CAPABILITY)
    old = json.loads(target.read_text()) if target.exists() else {}
    fitted = {name: {key: one[key] for key in FITTED if key in one} for name, one in old.get("kernels", {}).items()}
    known = {row.name for row in gemm_kernels()} | {row.name for row in conv_kernels()}
    found = {
        name: msgspec.structs.replace(one, **fitted.get(name, {})) for name, one in found.items() if name in known and one.registers > EMPTY
    }
    before = {name: one for name, one in old.get("kernels", {}).items() if name in known}
    kernels = before | {name: msgspec.to_builtins(one) for name, one in found.items()}
    kept = {key: value for key, value in old.items() if key.startswith("efficiencies")}
    sources: dict[str, Any] = {"source": gemm_kernels(), "source of convolutions": conv_kernels()}
    documented = {key: source if any(row.name in found for row in rows) else old.get(key, "") for key, rows in sources.items()}
    document = {"schema": 1, "command": "lab/fits/cuda_attributes.py", **documented, **kept}
    write(target, document | {"kernels": kernels})
    stacks = sum(one["local_bytes"] > 0 for one in kernels.values())
    print(f"{target.name}: {len(found)} kernels found, {len(kernels)} in all, {stacks} of them with a stack in local memory")


if __name__ == "__main__":
    main()
