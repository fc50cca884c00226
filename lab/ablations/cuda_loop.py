#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the instructions of a CUDA kernel's main loop by kind, from the machine code.

    lab/ablations/cuda_loop.py OBJECT [--kernel SUBSTRING] [--cuobjdump PATH]

The main loop is the innermost loop with the most multiply-adds; of several, the shortest, which is the loop of whole tiles, not
of edges. `share` is the share of FFMA in all instructions, which bounds an FP32 kernel, because a scheduler issues one instruction per
cycle. `operands` counts the registers that an FFMA reads from the register file; a register that the previous FFMA kept in the same slot
(.reuse) is not read again. An outer product needs at least 2, and two banks (even and odd registers) deliver one each per cycle.
cuobjdump and nvdisasm come with CUDA (or from PyPI: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm).
"""

import argparse
import re
import subprocess
from collections import Counter
from pathlib import Path

LEAST = 64  # multiply-adds of a loop that counts as a main loop


def functions(listing: str) -> dict[str, list[tuple[int, str]]]:
    """Addresses and instructions of each kernel in what cuobjdump -sass prints."""
    found: dict[str, list[tuple[int, str]]] = {}
    body: list[tuple[int, str]] = []
    for line in listing.splitlines():
        if name := re.search(r"Function : (\S+)", line):
            body = found.setdefault(name[1], [])
        elif code := re.match(r"\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", line):
            body.append((int(code[1], 16), re.sub(r"^@!?U?PT?\d* ", "", code[2].strip())))
    return found


def main_loop(body: list[tuple[int, str]]) -> list[str]:
    """The instructions from a branch's target up to the branch; empty where no loop has multiply-adds."""
    place = {address: i for i, (address, _) in enumerate(body)}
    loops = []
    for i, (address, text) in enumerate(body):
        target = re.search(r"^BRA\S* .*?0x([0-9a-f]+)", text)
        if target and int(target[1], 16) < address and int(target[1], 16) in place:
            loops.append((place[int(target[1], 16)], i))
    heavy = [(first, last) for first, last in loops if sum(kind(text) == "FFMA" for _, text in body[first : last + 1]) >= LEAST]
    inner = [one for one in heavy if not any(other != one and one[0] <= other[0] and other[1] <= one[1] for other in heavy)]
    if not inner:
        return []
    first, last = max(inner, key=lambda one: (sum(kind(text) == "FFMA" for _, text in body[one[0] : one[1] + 1]), one[0] - one[1]))
    return [text for _, text in body[first : last + 1]]


def kind(text: str) -> str:
    """An instruction's name, with the width of what it moves."""
    name = text.split()[0]
    return name.split(".")[0] + (".128" if ".128" in name else ".64" if name.endswith(".64") else "")


def operands(loop: list[str]) -> float:
    """Registers that an FFMA reads, on average."""
    read = count = 0
    kept: dict[int, str] = {}
    for text in loop:
        if kind(text) != "FFMA":
            kept = {}
            continue
        slots = [re.match(r"-?(R\d+)(\.reuse)?$", part) for part in text.split(None, 1)[1].split(", ")[1:]]
        read += sum(bool(part) and kept.get(i) != part[1] for i, part in enumerate(slots) if part)
        kept = {i: part[1] for i, part in enumerate(slots) if part and part[2]}
        count += 1
    return read / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("object", type=Path, help="an object file or library that nvcc made")
    parser.add_argument("--kernel", default="", help="part of the kernels' (mangled) names")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    arguments = parser.parse_args()
    listing = subprocess.run([arguments.cuobjdump, "-sass", str(arguments.object)], check=True, capture_output=True, text=True).stdout
    for name, body in functions(listing).items():
        loop = main_loop(body) if arguments.kernel in name else []
        if not loop:
            continue
        counts = Counter(kind(text) for text in loop)
        print(f"{name}\n    {len(loop)} instructions, share {counts['FFMA'] / len(loop):.3f}, operands {operands(loop):.2f}")
        print("    " + ", ".join(f"{number} {what}" for what, number in counts.most_common()))


if __name__ == "__main__":
    main()
