# SPDX-License-Identifier: Apache-2.0
"""PYSIM_DISABLE leaves PyTorch models to PyTorch; the log says who runs each layer."""

import logging

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from torch_models import block, settled  # noqa: E402

import pysim.torch  # noqa: E402


def test_a_model_under_the_off_switch_is_pytorchs_bit_for_bit_and_that_is_said_once(
    every_layer_is_ours, fresh_compiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = settled(block()), torch.randn(1, 3, 9, 9)
    optimized = pysim.torch.optimize(model)
    monkeypatch.setenv("PYSIM_DISABLE", "1")
    pysim.torch._say_disabled.cache_clear()
    with caplog.at_level(logging.INFO, "pysim"), torch.no_grad():
        assert pysim.torch.optimize(model) is model and pysim.torch.optimize(optimized) is model
        compiled = torch.compile(model, backend=pysim.torch.backend)
        assert torch.equal(compiled(x), model(x))
    told = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert len(told) == 1 and "PYSIM_DISABLE is set" in told[0]
    for one in (model, compiled):
        assert [(decision.runs, decision.reason) for decision in pysim.torch.report(one)] == [("torch", "PYSIM_DISABLE is set")]
    with pytest.raises(pysim.PysimError, match="accuracy"):
        pysim.torch.optimize(model, accuracy="best")
    monkeypatch.setenv("PYSIM_DISABLE", "off")
    caplog.clear()
    with caplog.at_level(logging.INFO, "pysim"), torch.no_grad():
        optimized(x)
    assert [decision.runs for decision in pysim.torch.report(optimized)] == ["pysim"]
    assert any("runs by pysim: " in one.getMessage() for one in caplog.records), "each layer is logged with its plan"
