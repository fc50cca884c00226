# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as one family: each message says what was wrong, where, and what would be right."""


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
