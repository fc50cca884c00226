# SPDX-License-Identifier: Apache-2.0
"""The mark of tests that need the native library."""

import pytest

from pysim.errors import MissingError
from pysim.runtime import cpu


def native_is_missing() -> str:
    """Why the native library cannot be used; empty if it can."""
    try:
        cpu.library()
    except (MissingError, OSError) as error:
        return str(error)
    return ""


native = pytest.mark.skipif(bool(native_is_missing()), reason=native_is_missing() or "the native library is here")
