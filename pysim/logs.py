# SPDX-License-Identifier: Apache-2.0
"""The logger `pysim`, and the two switches from outside the program (docs/environment.md).

    INFO     what was planned, detected, loaded and compiled; what of a PyTorch model is pysim's, what stays PyTorch's, and why
    DEBUG    the kernels that were rejected for a plan, and why

The logger is silent until a program gives it a handler, as any library's, or PYSIM_LOG names a level and perhaps a file.
"""

import logging
import os

LOG = logging.getLogger("pysim")
LOG.addHandler(logging.NullHandler())
_LEVELS = ("debug", "info", "warning", "error")
_NO = ("", "0", "false", "no", "off")
_FORMAT = logging.Formatter("%(asctime)s pysim %(levelname)s: %(message)s")


def listen(setting: str) -> None:
    """Turns the logger on: "info" on stderr, "debug:FILE" into a file, to which is added. What is wrong with the setting is said on stderr,
    and the program goes on: a switch for looking must not stop it."""
    level, _, file = setting.partition(":")
    handler: logging.Handler = logging.StreamHandler()
    wrong = ""
    if level.strip().lower() not in _LEVELS:
        wrong = f"PYSIM_LOG is {setting!r}; expected one of: {', '.join(_LEVELS)}, as it is or with a file: debug:pysim.log"
        level = "warning"
    elif file:
        try:
            handler = logging.FileHandler(file, encoding="utf-8")
        except OSError as error:
            wrong = f"PYSIM_LOG names the file {file!r}, which cannot be written: {error.strerror}; the log goes to stderr"
    handler.setFormatter(_FORMAT)
    LOG.addHandler(handler)
    LOG.setLevel(level.strip().upper())
    if wrong:
        LOG.warning(wrong)


def is_disabled() -> bool:
    """Whether PYSIM_DISABLE is set: what replaces a framework's code then leaves it as it is. pysim's own functions still compute."""
    return os.environ.get("PYSIM_DISABLE", "").strip().lower() not in _NO


if _setting := os.environ.get("PYSIM_LOG"):
    listen(_setting)
