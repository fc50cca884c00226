# SPDX-License-Identifier: Apache-2.0
"""Reads and writes whole files that a user names. Only regular files up to a size limit are read."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pysim.errors import OperandError, ProblemError, PysimError, printable, quoted

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


@contextmanager
def written(path: Path, error: type[PysimError] = ProblemError, replace: bool = True) -> Iterator[Path]:
    """Yields the path of a new file, which takes the place of `path` when the block ends. If the block fails, `path` stays as it was.

    A pipe or device is written to directly. Raises `error` if the file cannot be written, or exists and `replace` is false.
    """
    try:
        target = path.resolve()  # a symbolic link stays
        if target.exists() and not target.is_file():
            yield path
            return
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            partial = Path(folder) / target.name
            yield partial
            if replace:
                partial.replace(target)
            else:
                os.link(partial, target)  # fails if a file was created meanwhile
    except (OSError, ValueError, RuntimeError) as cause:
        raise error(f"{_name(path)} cannot be written: {getattr(cause, 'strerror', None) or cause}") from None


def path_of(path: object) -> Path:
    """The path of a file that a user names; OperandError for what is no path."""
    if not isinstance(path, str | Path):
        raise OperandError(f"path is {quoted(path)}; expected the path of a file, such as model.pysim")
    return Path(path)


def path_to_save(path: object) -> Path:
    """Where a user saves a model. OperandError also for the name of an ONNX file, which the model may have been read from."""
    if (made := path_of(path)).suffix == ".onnx":
        other = _name(made.with_suffix(".pysim"))
        raise OperandError(f"{_name(made)}: what is saved is no ONNX file; expected another name, such as {other}")
    return made


def check_writable(path: Path, error: type[PysimError] = ProblemError) -> None:
    """Raises `error` if `written(path)` would fail. Leaves nothing behind."""
    name = _name(path)
    if path.is_dir():
        raise error(f"{name} cannot be written: it is a folder")
    if not path.parent.is_dir():
        raise error(f"{name} cannot be written: there is no folder {path.parent}")
    if path.exists() and not path.is_file():
        return
    try:
        with tempfile.TemporaryDirectory(dir=path.resolve().parent) as folder:
            (Path(folder) / path.name).touch()
    except (OSError, ValueError, RuntimeError) as cause:
        raise error(f"{name} cannot be written: {getattr(cause, 'strerror', None) or cause}") from None


def _name(path: Path) -> str:
    """The path for a message; only the end of a very long one."""
    name = printable(str(path))
    return name if len(name) <= _LONGEST else f"...{name[-_LONGEST:]}"
