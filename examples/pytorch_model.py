# SPDX-License-Identifier: Apache-2.0
"""A PyTorch model made faster on a CPU, and the report that says which layers run here and why."""

import torch

import pysim

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 64, 7, stride=2, padding=3),
    torch.nn.BatchNorm2d(64),
    torch.nn.ReLU(),
    torch.nn.Conv2d(64, 64, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(64, 10),
).eval()
x = torch.rand(1, 3, 224, 224)

fast = pysim.torch.optimize(model)  # model stays as it is
with torch.no_grad():
    print("largest difference:", float((fast(x) - model(x)).abs().max()))
for decision in pysim.torch.report(fast):
    print(f"layer {decision.layer} runs in {decision.runs}: {decision.reason}")
