# SPDX-License-Identifier: Apache-2.0
"""Reads whole files that a user names. Only regular files up to a size limit are accepted."""

import stat
from pathlib import Path

from pysim.errors import ProblemError, printable

_LONGEST = 300


def read_bytes(path: Path, most: int) -> bytes:
    """The contents of a file. Raises ProblemError if it cannot be read, is larger than `most` bytes, or is a device, pipe, socket or
    folder. These are never opened, since reading one may block forever."""
    name = _name(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ProblemError(f"{name} cannot be read: it is a folder, device, pipe or socket; it should be a regular file")
        if status.st_size > most:
            raise ProblemError(f"{name} is too large: {status.st_size:,} bytes; it should have at most {most:,}")
        with path.open("rb") as file:
            return file.read(status.st_size)
    except (OSError, ValueError) as error:
        raise ProblemError(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_text(path: Path, most: int) -> str:
    """The contents of a UTF-8 file, without a byte-order mark. Errors as in `read_bytes`."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProblemError(f"{_name(path)} cannot be read as UTF-8 text: {error}") from None


def _name(path: Path) -> str:
    """The path for a message; only the end of a very long one."""
    name = printable(str(path))
    return name if len(name) <= _LONGEST else f"...{name[-_LONGEST:]}"
