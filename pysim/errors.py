# SPDX-License-Identifier: Apache-2.0
"""The package's exceptions. Each message says what was wrong, where, and what would be right."""

import difflib
import sys
from collections.abc import Callable, Iterable


class PysimError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = 2


class ProblemError(PysimError):
    """A problem text, layer list or model file that cannot be read."""


class MachineError(PysimError):
    """A machine file that cannot be read, or an unknown machine name."""


class PlanError(PysimError):
    """No legal plan, or a plan that does not belong to the problem."""


class OperandError(PysimError):
    """An array of the wrong rank, shape, dtype or memory."""


class MissingError(PysimError):
    """Hardware, a compiler or an optional package is missing; the message says how to get it."""

    exit_code = 3


class NativeError(PysimError):
    """The native library refused a call; the message is its own."""


class StoreError(PysimError):
    """A measurement store that cannot be opened, read or written."""


def run_script(main: Callable[[], object]) -> None:
    """Runs a script's `main`. A PysimError becomes one line on stderr and its exit code."""
    try:
        main()
    except PysimError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def printable(text: str) -> str:
    """The text with control characters and line ends escaped, so that a file name or label cannot steer the terminal: \\x1b."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(value: object) -> str:
    """A value for a message: on one line, long texts cut, other long values replaced by their type."""
    if isinstance(value, str):
        text = printable(value)
        return f'"{text if len(text) <= 120 else text[:120] + "..."}"'
    text = repr(value)
    return text if len(text) <= 60 and text.isprintable() else f"a value of type {type(value).__name__}"


def choose(name: object, options: Iterable[str]) -> str:
    """The hint after an unknown name: the nearest option, if one is close, and all options in their order."""
    known = list(options)
    close = nearest(name, known)
    hint = f'did you mean "{close}"? ' if close else ""
    return hint + (f"there are: {', '.join(known)}" if len(known) > 1 else f"there is {', '.join(known) or 'none'}")


def nearest(name: object, options: Iterable[str]) -> str | None:
    """The option spelt most like a name; None if none is close or the name is not a string."""
    return next(iter(difflib.get_close_matches(name, list(options), n=1)), None) if isinstance(name, str) else None
