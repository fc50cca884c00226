# SPDX-License-Identifier: Apache-2.0
"""PyTorch's compiler keeps, for a class's code, which sizes it has seen change: no file begins with what another one left there."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def compiler_of_this_file() -> Iterator[None]:
    yield
    import torch

    torch._dynamo.reset()


@pytest.fixture
def slow_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler is here, and every layer is expected to be faster than its own."""
    import torch

    from pysim.torch.capture import compiled, compiled_layers

    torch.manual_seed(0)
    monkeypatch.setattr(compiled, "missing_compiler", lambda: "")
    monkeypatch.setattr(compiled_layers, "compiler_seconds", lambda *_: float("inf"))
