# SPDX-License-Identifier: Apache-2.0
"""Divides wheels that were built with -Dcuda=enabled in two: pysim-planner without the CUDA library, and pysim-planner-cu13, which has that
alone and needs pysim-planner of the same version. python tools/build/split_cuda.py WHEEL... -o FOLDER"""

import argparse
from pathlib import Path

from wheel.wheelfile import WheelFile

LIBRARY = "pysim/native/libpysim_cuda.so"
NAME, PACKAGE = "pysim-planner-cu13", "pysim_cu13"


def divide(wheel: Path, folder: Path) -> list[Path]:
    """The two wheels' paths."""
    with WheelFile(wheel) as whole:
        version = whole.parsed_filename["ver"]
        info, tags = whole.dist_info_path, wheel.name.partition(f"-{version}-")[2]
        parts = {name: whole.read(name) for name in whole.namelist() if not name.endswith("/RECORD")}
    if LIBRARY not in parts:
        raise SystemExit(f"{wheel.name} has no {LIBRARY}; build it with -Csetup-args=-Dcuda=enabled")
    library, metadata = parts.pop(LIBRARY), parts[f"{info}/METADATA"].decode()
    head = [line for line in metadata.partition("\n\n")[0].splitlines() if line.startswith(("Metadata-Version", "License-Expression"))]
    head += [f"Name: {NAME}", f"Version: {version}", "Summary: The CUDA kernels of pysim-planner, for drivers of CUDA 13"]
    head += ["Requires-Python: >=3.11", f"Requires-Dist: pysim-planner=={version}"]
    own = f"{PACKAGE}-{version}.dist-info".replace(PACKAGE, NAME.replace("-", "_"))
    cuda = {
        f"{PACKAGE}/__init__.py": b'"""The CUDA kernels of pysim; pysim finds them here."""\n',
        f"{PACKAGE}/libpysim_cuda.so": library,
        f"{own}/METADATA": ("\n".join(head) + "\n").encode(),
        f"{own}/WHEEL": parts[f"{info}/WHEEL"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    made = [folder / wheel.name, folder / f"{NAME.replace('-', '_')}-{version}-{tags}"]
    for path, files in zip(made, (parts, cuda), strict=True):
        with WheelFile(path, "w") as written:
            for name, content in files.items():
                written.writestr(name, content)
    return made


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    parser.add_argument("-o", dest="folder", type=Path, required=True, metavar="FOLDER")
    given = parser.parse_args()
    for one in given.wheels:
        print(*divide(one, given.folder), sep="\n")
