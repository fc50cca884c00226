# SPDX-License-Identifier: Apache-2.0
"""What the tests of the emulated executor share: whether it can run here, a started worker, operands."""

import numpy as np
import pytest

import pysim
from pysim.errors import MissingError
from pysim.runtime.emulated import Emulated
from pysim.runtime.foreign import POWER10

NAME = "power10-e1050"
RANDOM = np.random.default_rng(11)


def _emulation_is_missing() -> str:
    try:
        POWER10.emulator()
        POWER10.compilers()
    except MissingError as error:
        return str(error)
    return ""


emulation = pytest.mark.skipif(bool(_emulation_is_missing()), reason=_emulation_is_missing() or "QEMU and a compiler are here")


def started():
    """An executor whose worker has started, for as long as a test wants it: the body of a fixture."""
    one = Emulated(POWER10)
    assert one.call("pysim_kernel_count") == len(pysim.registry.cpu.cpu_kernels())
    yield one
    one.close()


def whole(*shape, dtype=np.float32):
    """Small integers: any order of summation gives the same bits."""
    return RANDOM.integers(-3, 4, shape).astype(dtype)
