#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the architectures that -Dgpu_archs=auto stands for: the compute capabilities of the GPUs that nvidia-smi lists, if the given nvcc
compiles for them; 90 becomes 90a, the only one with wgmma. Without a GPU it prints 90a. Older GPUs are named on stderr.

    tools/gpu_archs.py NVCC
"""

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
