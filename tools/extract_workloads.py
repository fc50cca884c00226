# SPDX-License-Identifier: Apache-2.0
"""Writes the built-in sets `pysim/problem/sets/*.txt`: one problem per line. Repeated layers stay, so that counts are those of the network.

resnet50, googlenet, inception_v2 and squeezenet are every Conv, in graph order, of the models that the onnx package
carries (`onnx/backend/test/data/light/light_*.onnx`). resnet18 and resnet152 follow Table 1 of He et al. (arXiv
1512.03385) and vgg16 configuration D of Simonyan and Zisserman (arXiv 1409.1556), at 224 x 224. Bottlenecks stride in
their 3x3, as light_resnet50 does (the paper strides in the first 1x1); projections are 1x1. mec is the twelve layers
of MEC (Cho and Brand, ICML 2017) and Im2win (arXiv 2306.14316), opencnn the layers of openCNN (Mathematics 2021, 9(17),
2033), cutlass the product of NVIDIA's CUTLASS blog.

    python tools/extract_workloads.py            write the files
    python tools/extract_workloads.py --check    exit 1 if a file differs from what would be written
"""

import argparse
import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pysim.onnx.layers import read
from pysim.problem.conv import Conv
from pysim.problem.gemm import Gemm
from pysim.problem.text import SHIPPED, Layer

FROM_ONNX = {
    "resnet50": ("ResNet-50", "light_resnet50.onnx"),
    "googlenet": ("GoogLeNet (Inception v1)", "light_inception_v1.onnx"),
    "inception_v2": ("Inception v2 (BN-Inception)", "light_inception_v2.onnx"),
    "squeezenet": ("SqueezeNet 1.1", "light_squeezenet.onnx"),
}
STAGES = (64, 128, 256, 512)  # filters of the 3x3 convolutions of conv2_x to conv5_x


def square(channels: int, size: int, filters: int, kernel: int, stride: int = 1, pad: int = 0, batch: int = 1) -> Conv:
    """A convolution that is the same in both directions."""
    return Conv(
        batch=batch,
        channels=channels,
        height=size,
        width=size,
        filters=filters,
        kernel_h=kernel,
        kernel_w=kernel,
        stride_h=stride,
        stride_w=stride,
        pad_top=pad,
        pad_left=pad,
        pad_bottom=pad,
        pad_right=pad,
    )


def convolutions_of_onnx(title: str, file: str) -> tuple[str, list[Layer]]:
    """A header and every Conv of one of the onnx package's models, labelled by its weights' name."""
    import onnx

    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / file
    nodes = [node for node in onnx.load(path).graph.node if node.op_type == "Conv"]
    layers, skipped = read(path)
    convolutions = [layer for layer in layers if isinstance(layer.workload, Conv)]
    if skipped or len(convolutions) != len(nodes):
        raise SystemExit(f"{path}: {len(nodes)} convolutions, {len(convolutions)} read, skipped {skipped}")
    labels = [node.input[1].removeprefix("gpu_0/").removesuffix("_w_0") for node in nodes]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    header = f"{title}: every Conv of the onnx package's backend/test/data/light/{file} in graph order\nsha256 {digest}"
    return header, [layer._replace(label=label) for layer, label in zip(convolutions, labels, strict=True)]


def resnet18() -> Iterator[Layer]:
    """7x7, then two blocks of two 3x3 in each stage; the first block of conv3_x to conv5_x strides and projects."""
    yield Layer(square(3, 224, 64, 7, 2, 3), "conv1")
    channels, size = 64, 56
    for stage, filters in enumerate(STAGES, start=2):
        for block in range(2):
            stride = 2 if stage > 2 and block == 0 else 1
            name = f"res{stage}_{block}_branch"
            yield Layer(square(channels, size, filters, 3, stride, 1), f"{name}2a")
            yield Layer(square(filters, size // stride, filters, 3, 1, 1), f"{name}2b")
            if channels != filters:
                yield Layer(square(channels, size, filters, 1, stride), f"{name}1")
            channels, size = filters, size // stride


def resnet152() -> Iterator[Layer]:
    """7x7, then 3, 8, 36 and 3 bottlenecks (1x1, 3x3, 1x1 to four times the filters); the first of a stage projects."""
    yield Layer(square(3, 224, 64, 7, 2, 3), "conv1")
    channels, size = 64, 56
    for stage, (filters, blocks) in enumerate(zip(STAGES, (3, 8, 36, 3), strict=True), start=2):
        for block in range(blocks):
            stride = 2 if stage > 2 and block == 0 else 1
            name = f"res{stage}_{block}_branch"
            yield Layer(square(channels, size, filters, 1), f"{name}2a")
            yield Layer(square(filters, size, filters, 3, stride, 1), f"{name}2b")
            yield Layer(square(filters, size // stride, 4 * filters, 1), f"{name}2c")
            if block == 0:
                yield Layer(square(channels, size, 4 * filters, 1, stride), f"{name}1")
            channels, size = 4 * filters, size // stride


def vgg16() -> Iterator[Layer]:
    """3x3 convolutions in five groups, each group at half the size of the one before."""
    channels, size = 3, 224
    for group, (filters, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1):
        for index in range(1, count + 1):
            yield Layer(square(channels, size, filters, 3, 1, 1), f"conv{group}_{index}")
            channels = filters
        size //= 2


def mec() -> Iterator[Layer]:
    """cv1 to cv12: channels, size, filters, kernel, stride; no padding."""
    rows = [(3, 227, 96, 11, 4), (3, 231, 96, 11, 4), (3, 227, 64, 7, 2), (64, 224, 64, 7, 2)]
    rows += [(96, 24, 256, 5, 1), (256, 12, 512, 3, 1), (3, 224, 64, 3, 1), (64, 112, 128, 3, 1)]
    rows += [(64, 56, 64, 3, 1), (128, 28, 128, 3, 1), (256, 14, 256, 3, 1), (512, 7, 512, 3, 1)]
    for number, row in enumerate(rows, start=1):
        yield Layer(square(*row), f"cv{number}")


def opencnn() -> Iterator[Layer]:
    """Conv2 to Conv5, the 3x3 layers of ResNet, at four batch sizes."""
    for batch in (32, 64, 96, 128):
        for number, (size, filters) in enumerate(((56, 64), (28, 128), (14, 256), (7, 512)), start=2):
            yield Layer(square(filters, size, filters, 3, 1, 1, batch), f"Conv{number}_N{batch}")


def cutlass() -> Iterator[Layer]:
    """The product of the blog's figure, in the four layouts."""
    for trans_a in (False, True):
        for trans_b in (False, True):
            problem = Gemm(m=10240, n=4096, k=4096, trans_a=trans_a, trans_b=trans_b)
            yield Layer(problem, f"sgemm_{problem.layout}")


WRITTEN: dict[str, tuple[str, Callable[[], Iterator[Layer]]]] = {
    "resnet18": ("ResNet-18: Table 1 of arXiv 1512.03385, 1x1 projections where the filters change", resnet18),
    "resnet152": ("ResNet-152: Table 1 of arXiv 1512.03385, stride in the 3x3 as in resnet50", resnet152),
    "vgg16": ("VGG-16: configuration D of arXiv 1409.1556", vgg16),
    "mec": ("The 12 layers of MEC (ICML 2017) and Im2win (arXiv 2306.14316), batch 1; cv4 with MEC's 64 channels", mec),
    "opencnn": ("The 3x3 layers of ResNet as openCNN times them (Mathematics 2021, 9(17), 2033)", opencnn),
    "cutlass": ("SGEMM of NVIDIA's CUTLASS blog: M 10240, N = K = 4096, in four layouts", cutlass),
}


def files() -> dict[str, str]:
    """The text of each file, by set name."""
    found = {name: convolutions_of_onnx(*source) for name, source in FROM_ONNX.items()}
    found |= {name: (header, list(layers())) for name, (header, layers) in WRITTEN.items()}
    texts = {}
    for name, (header, layers) in found.items():
        lines = [f"# {line}" for line in (*header.splitlines(), "written by tools/extract_workloads.py")]
        lines += [f'{layer.workload.text}_n"{layer.label}"' for layer in layers]
        texts[name] = "\n".join(lines) + "\n"
    return texts


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    check = parser.parse_args().check
    differing = []
    for name, text in files().items():
        path = SHIPPED / f"{name}.txt"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            differing.append(path)
            if not check:
                path.write_text(text, encoding="utf-8")
    print(
        "\n".join(f"{'differs' if check else 'written'}: {path}" for path in differing) or "nothing to do",
        file=sys.stderr,
    )
    return int(check and bool(differing))


if __name__ == "__main__":
    raise SystemExit(main())
