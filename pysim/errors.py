# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as one family: each message says what was wrong, where, and what would be right."""

import difflib
from collections.abc import Iterable


class PysimError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = 2


class ProblemError(PysimError):
    """A problem text, layer list or model file that cannot be read."""


class MachineError(PysimError):
    """A machine file that cannot be read, or a name that no machine has."""


class PlanError(PysimError):
    """No legal plan, or a plan that does not belong to the problem."""


class OperandError(PysimError):
    """An array of the wrong rank, shape, dtype or memory."""


class MissingError(PysimError):
    """Hardware, a compiler or an optional package that is not here; the message says how to get it."""

    exit_code = 3


class NativeError(PysimError):
    """The native library refused a call; carries its own sentence."""


class StoreError(PysimError):
    """A measurement store that cannot be opened, read or written."""


def printable(text: str) -> str:
    """The text with whatever would steer a terminal, line ends too, as Python writes it: \\x1b. For names that others gave."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(value: object) -> str:
    """A value as a message has it: on one line, cut where it is long; of what is long and no text, its type."""
    if isinstance(value, str):
        text = printable(value)
        return f'"{text if len(text) <= 120 else text[:120] + "..."}"'
    text = repr(value)
    return text if len(text) <= 60 and text.isprintable() else f"a value of type {type(value).__name__}"


def choose(name: object, options: Iterable[str]) -> str:
    """What to say after an unknown name: the nearest option, if one is near, and all of them in their order."""
    known = list(options)
    close = nearest(name, known)
    hint = f'did you mean "{close}"? ' if close else ""
    return hint + (f"there are: {', '.join(known)}" if len(known) > 1 else f"there is {', '.join(known) or 'none'}")


def nearest(name: object, options: Iterable[str]) -> str | None:
    """The option that is spelt most like a name, or None where none is near or the name is no text."""
    return next(iter(difflib.get_close_matches(name, list(options), n=1)), None) if isinstance(name, str) else None
