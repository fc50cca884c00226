#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures errors of ResNet-50 against FP64 after each stage and at the end, for PyTorch and each accuracy of pysim, FP32, batch 32.

    lab/benchmarks/cuda/stage_errors.py -o h200/models-mean-error.jsonl [--accuracy strict,standard,ieee]

One line per stage. `max`: the largest difference over the largest output. `signed`: the relative scale error of the whole output (least
squares). `rest`: the norm of the remaining error over the output's norm. BatchNorm has the statistics of lab/benchmarks/cuda/models.py.
"""

import argparse
import json
from pathlib import Path

import torch
from models import network
from torch import nn

import pysim.torch
from pysim.peers.torch import version


def stages(model: nn.Module) -> dict[str, nn.Module]:
    """The model up to the end of each stage, and the whole model."""
    head, found = [model.conv1, model.bn1, model.relu, model.maxpool], {}
    for name in ("layer1", "layer2", "layer3", "layer4"):
        head.append(getattr(model, name))
        found[name] = nn.Sequential(*head).eval()
    found["logits"] = nn.Sequential(*head, model.avgpool, nn.Flatten(), model.fc).eval()
    return found


def errors_of(y: torch.Tensor, exact: torch.Tensor) -> dict[str, float]:
    error = y.double() - exact
    signed = float((error * exact).sum() / (exact * exact).sum())
    rest = float((error - signed * exact).norm() / exact.norm())
    return {"max": float(error.abs().max() / exact.abs().max()), "signed": signed, "rest": rest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--accuracy", default="strict,standard", help="by comma")
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    lines = [{"device": torch.cuda.get_device_name(), "versions": version()}]
    with torch.no_grad():
        model, x = network("resnet50", 32, 224), torch.randn(32, 3, 224, 224, device="cuda")
        for name, part in stages(model).items():
            exact = part.double()(x.double())
            part.float()
            rows = {"pytorch": part(x)} | {level: pysim.torch.optimize(part, level)(x) for level in options.accuracy.split(",")}
            lines.append({"stage": name} | {who: errors_of(y, exact) for who, y in rows.items()})
            print(json.dumps(lines[-1]), flush=True)
    options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
