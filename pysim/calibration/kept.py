# SPDX-License-Identifier: Apache-2.0
"""Where a detected machine is kept: TOML in the user's cache, one file for each CPU, geometry and kernel of Linux.

What was measured beside other processes lies in a file of its own, which counts only where there is no other: it is usable until this
computer is quiet, and never stands in the way of what was measured then.
"""

import hashlib
import json
import platform
import tempfile
from pathlib import Path
from typing import NamedTuple

from pysim.calibration.linux import Cpu, Geometry
from pysim.errors import MachineError
from pysim.machine.cpu import Machine
from pysim.machine.load import loads
from pysim.registry.cpu import kernels

_VERSION = 14  # raised when a probe or a detection measures something else than before


class Kept(NamedTuple):
    """The files of one computer."""

    quiet: Path
    loaded: Path


def kept_of(cpu: Cpu, caches: list[Geometry], folder: Path | None) -> Kept | None:
    """host-<hash>.toml and host-<hash>-loaded.toml in `folder`; None where there is none."""
    if folder is None:
        return None
    targets = sorted({kernel.target for kernel in kernels()})
    key = hashlib.sha256(json.dumps([_VERSION, cpu, caches, platform.release(), targets]).encode()).hexdigest()[:16]
    return Kept(folder / f"host-{key}.toml", folder / f"host-{key}-loaded.toml")


def recall(path: Path) -> Machine | None:
    """What is kept there; None where that is nothing, or does not hold."""
    try:
        machine = loads(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError, MachineError):
        return None
    return machine if isinstance(machine, Machine) and machine.name == "host" else None


def remember(path: Path, text: str) -> None:
    """Whole or not at all: another process may read it now. That it cannot be written is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            partial = Path(folder) / path.name
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
    except OSError:
        return
