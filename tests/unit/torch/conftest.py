# SPDX-License-Identifier: Apache-2.0
"""PyTorch's compiler keeps, for a class's code, which sizes it has seen change: no file begins with what another one left there."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def compiler_of_this_file() -> Iterator[None]:
    yield
    import torch

    torch._dynamo.reset()
