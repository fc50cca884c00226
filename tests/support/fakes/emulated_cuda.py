# SPDX-License-Identifier: Apache-2.0
"""The CUDA library of the kernels as the CPU runs them (`native/cuda/emulated`): $PYSIM_EMULATED_CUDA_LIBRARY, or that of build-native."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from checkout import ROOT

from pysim.runtime import cuda

BUILT = ROOT / "build-native" / "native" / "cuda" / "libpysim_cuda_emulated.so"
LIBRARY = Path(os.environ.get("PYSIM_EMULATED_CUDA_LIBRARY") or BUILT)


@contextmanager
def opened() -> Iterator[None]:
    """It is the CUDA library meanwhile; the test is skipped where it is not built."""
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY} is not built (meson setup build-native -Dtests=true)")
    found = cuda.library, cuda.devices  # a test may put others in their places
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSIM_CUDA_LIBRARY", str(LIBRARY))
        for one in found:
            one.cache_clear()
        yield
    for one in found:
        one.cache_clear()
