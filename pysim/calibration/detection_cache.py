# SPDX-License-Identifier: Apache-2.0
"""The cached detection of this computer: TOML in the user's cache folder, one file per CPU, cache geometry, Linux kernel and instruction
sets that the process may use: PYSIM_MAX_TARGET, another build of the library, or a system that does not grant tiles leaves some out.

A detection under load goes into a separate file, which is used only until there is one from a quiet computer.
"""

import hashlib
import json
import platform
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from pysim.calibration.linux import Cpu, Geometry
from pysim.errors import MachineError
from pysim.file_io import check_writable, written
from pysim.machine.cpu import Machine
from pysim.machine.load import loads

_VERSION = 27  # raised when probes, detection, or the constants that it takes from the shipped machines change


class Kept(NamedTuple):
    """The cache files of one computer: detected when it was quiet, and under load."""

    quiet: Path
    loaded: Path


def kept_of(cpu: Cpu, caches: list[Geometry], targets: Iterable[str], folder: Path | None) -> Kept | None:
    """host-<hash>.toml and host-<hash>-loaded.toml in `folder`; None without a folder. `targets`: of the kernels that run here."""
    if folder is None:
        return None
    key = hashlib.sha256(json.dumps([_VERSION, cpu, caches, platform.release(), sorted(targets)]).encode()).hexdigest()[:16]
    return Kept(folder / f"host-{key}.toml", folder / f"host-{key}-loaded.toml")


def recall(path: Path) -> Machine | None:
    """The machine in this file; None where the file is missing or invalid."""
    try:
        machine = loads(path.read_text(encoding="utf-8"), str(path))
    except (OSError, ValueError, MachineError):
        return None
    return machine if isinstance(machine, Machine) and machine.name == "host" else None


def can_keep(kept: Kept) -> bool:
    """Whether the cache files can be written; their folder is made if it is not there."""
    try:
        kept.quiet.parent.mkdir(parents=True, exist_ok=True)
        check_writable(kept.quiet, MachineError)
    except (OSError, MachineError):
        return False
    return True


def remember(path: Path, text: str) -> None:
    """Writes the file atomically, since other processes may read it. A failure to write is ignored."""
    with suppress(OSError, MachineError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with written(path, MachineError) as partial:
            partial.write_text(text, encoding="utf-8")
