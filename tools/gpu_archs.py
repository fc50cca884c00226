#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What -Dgpu_archs=auto means here: the compute capabilities of the GPUs that nvidia-smi lists and the given nvcc compiles for, 90 as 90a,
which alone has wgmma; without any 90a. `gpu_archs.py NVCC` prints them in a line; older GPUs are named on stderr."""

import re
import subprocess
import sys


def listed(*command: str) -> str:
    """What a program prints; nothing where it is not here or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def archs(capabilities: str, compiled: str) -> list[str]:
    """Of nvidia-smi's list of compute_cap and nvcc's of architectures."""
    here = sorted({line.strip().replace(".", "") for line in capabilities.splitlines() if re.fullmatch(r"\d+\.\d", line.strip())}, key=int)
    known = set(re.findall(r"compute_(\d+)", compiled))
    for arch in here:
        if arch not in known:
            print(f"this nvcc does not compile for a GPU of capability {arch[:-1]}.{arch[-1]}: no kernel is built for it", file=sys.stderr)
    return [arch + "a" * (arch == "90") for arch in here if arch in known] or ["90a"]


if __name__ == "__main__":
    print(*archs(listed("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"), listed(sys.argv[1], "--list-gpu-arch")))
