# SPDX-License-Identifier: Apache-2.0
"""What the tests of the emulated executor share: whether it can run here, a started worker, operands."""

import os

import numpy as np
import pytest

import pysim
from pysim.errors import MissingError
from pysim.runtime import foreign
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


@pytest.fixture(scope="session")
def built_worker(cache, tmp_path_factory):
    """The worker lies in the cache of these tests; all processes that run tests share one build."""
    if _emulation_is_missing():
        return
    own = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str((own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared-cache"))
        built = foreign.worker(POWER10)
    (cache / "pysim").mkdir(exist_ok=True)
    os.link(built, cache / "pysim" / built.name)


def started():
    """An executor whose worker has started, for as long as a test wants it: the body of a fixture."""
    one = Emulated(POWER10)
    assert one.call("pysim_kernel_count") == len(pysim.registry.cpu.cpu_kernels())
    yield one
    one.close()


def whole(*shape, dtype=np.float32):
    """Small integers: any order of summation gives the same bits."""
    return RANDOM.integers(-3, 4, shape).astype(dtype)
