# SPDX-License-Identifier: Apache-2.0
"""What every fuzzer holds of one call: nothing but a PysimError, 2 s of CPU time, 500 MB of memory. PYSIM_LONG=1 gives each its many
inputs, 0.1 a tenth of them."""

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from pysim.errors import PysimError

SHARE = float(os.environ.get("PYSIM_LONG") or 0.005)  # of all inputs
SECONDS = 2.0
BYTES = 500_000_000


def inputs(long: int) -> Callable[[Any], Any]:
    """How many inputs a fuzzer tries: `long` with PYSIM_LONG=1, otherwise a two-hundredth of them."""
    phases = [Phase.explicit, Phase.generate, Phase.shrink]
    tried = settings(
        max_examples=max(1, round(long * SHARE)),
        deadline=None,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    return lambda test: pytest.mark.timeout(0)(tried(test))


def bounded(call: Callable[..., Any], *arguments: Any) -> Any:
    """What the call returns, or the PysimError that it raises; every other exception is the test's failure, as is too much time. An
    allocation beyond the memory allowed raises MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + BYTES, hard))
    start = time.process_time()
    try:
        found = call(*arguments)
    except PysimError as error:
        found = error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        spent = time.process_time() - start
        assert spent <= SECONDS, f"{spent:.1f} s of CPU time"
    assert not isinstance(found, PysimError) or str(found).strip()
    return found
