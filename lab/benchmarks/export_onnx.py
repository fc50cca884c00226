# SPDX-License-Identifier: Apache-2.0
"""Torchvision's models as ONNX files with seeded random weights: python lab/benchmarks/export_onnx.py -o FOLDER resnet50 vgg16 ...

Input of lab/benchmarks/models.py on other machines; needs torch, torchvision and onnx. BatchNorm has the initial statistics of a new model.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torchvision

_SIZES = {"inception_v3": 299, "swin_v2_t": 256}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    torch.backends.mha.set_fastpath_enabled(False)  # attention as one operator, which no ONNX has
    given.output.mkdir(parents=True, exist_ok=True)
    for name in given.models:
        torch.manual_seed(0)
        options: dict[str, Any] = {"init_weights": True} if name in ("googlenet", "inception_v3") else {}
        if name.startswith(("deeplab", "fcn", "lraspp")):
            options = {"weights_backbone": None}
        model = torchvision.models.get_model(name, weights=None, **options).eval()
        size = _SIZES.get(name, 224)
        torch.onnx.export(model, torch.rand(1, 3, size, size), str(given.output / f"{name}.onnx"), opset_version=17, dynamo=False)
        print(f"{name}: torch {torch.__version__}, torchvision {torchvision.__version__}", flush=True)


if __name__ == "__main__":
    main()
