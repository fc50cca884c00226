# SPDX-License-Identifier: Apache-2.0
"""meson-python's build backend, and the tag that fits its wheels: nothing in them links to Python, so one serves every Python 3."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from mesonpy import (  # the other hooks, as they are
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)
from mesonpy import build_wheel as build_tagged_wheel


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    """The wheel's file name, tagged py3-none-<platform>."""
    name = build_tagged_wheel(wheel_directory, config_settings, metadata_directory)
    command = [
        sys.executable,
        "-m",
        "wheel",
        "tags",
        "--remove",
        "--python-tag",
        "py3",
        "--abi-tag",
        "none",
        str(Path(wheel_directory, name)),
    ]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip().splitlines()[-1]


__all__ = [
    "build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable", "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]  # fmt: skip
