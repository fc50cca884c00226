# SPDX-License-Identifier: Apache-2.0
"""Small transformers with random weights as ONNX files whose batch is open: python lab/benchmarks/small_transformers.py FOLDER [NAME ...]

Without names: bert (transformers), vit (timm), and gpt and llama as they are below. Other names are timm's, and may have a size of images,
resnet18:64. Input of lab/benchmarks/reproducible.py and reproducible_elsewhere.py.
"""

import math
import sys
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn
from transformers import BertConfig, BertModel

WIDTH, HEADS, LENGTH, WORDS, LAYERS = 96, 4, 37, 500, 2


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Any) -> Any:
        return self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    """Causal attention and a perceptron behind norms; of llama with rotary positions, RMSNorm and a gate."""

    def __init__(self, is_llama: bool) -> None:
        super().__init__()
        self.is_llama, size, norm = is_llama, WIDTH // HEADS, RMSNorm if is_llama else nn.LayerNorm
        self.norms = nn.ModuleList([norm(WIDTH), norm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.gate, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        angles = torch.arange(LENGTH)[:, None] * torch.exp(-torch.arange(0, size, 2) * math.log(1e4) / size)[None]
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -1e9).triu(1))
        self.register_buffer("cos", torch.cat([angles.cos()] * 2, -1))
        self.register_buffer("sin", torch.cat([angles.sin()] * 2, -1))

    def turned(self, x: Any) -> Any:
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin

    def forward(self, x: Any) -> Any:
        n = x.shape[0]
        q, k, v = self.qkv(self.norms[0](x)).reshape(n, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = (self.turned(q), self.turned(k)) if self.is_llama else (q, k)
        shares = (q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS) + self.mask).softmax(-1)
        x = x + self.out((shares @ v).transpose(1, 2).reshape(n, LENGTH, WIDTH))
        y = self.norms[1](x)
        up = nn.functional.silu(self.up(y)) * self.gate(y) if self.is_llama else nn.functional.gelu(self.up(y), approximate="tanh")
        return x + self.down(up)


class Decoder(nn.Module):
    def __init__(self, is_llama: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.blocks, self.head = nn.Sequential(*(Block(is_llama) for _ in range(LAYERS))), nn.Linear(WIDTH, WORDS)

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(self.words(x) + self.places)[:, -1])


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 200}
        sizes |= {"vocab_size": WORDS, "max_position_embeddings": 64, "attn_implementation": "eager"}
        self.model = BertModel(BertConfig(**sizes))

    def forward(self, x: Any) -> Any:
        return self.model(input_ids=x, return_dict=False)[0]


def made(name: str) -> tuple[Any, Any]:
    """A model and an input."""
    if name in ("bert", "gpt", "llama"):
        return Bert() if name == "bert" else Decoder(name == "llama"), torch.randint(0, WORDS, (2, LENGTH))
    if name == "vit":
        sizes = {"img_size": 48, "patch_size": 8, "embed_dim": WIDTH, "depth": LAYERS, "num_heads": 3}
        return timm.models.vision_transformer.VisionTransformer(**sizes), torch.rand(2, 3, 48, 48)
    name, _, size = name.partition(":")
    x = torch.rand(2, 3, int(size or 224), int(size or 224))
    try:
        return timm.create_model(name, img_size=x.shape[-1]), x
    except TypeError:  # of any size
        return timm.create_model(name), x


def main() -> None:
    folder, *names = sys.argv[1:]
    for name in names or ("bert", "gpt", "llama", "vit"):
        torch.manual_seed(1)
        model, x = made(name)
        options: dict[str, Any] = {"input_names": ["x"], "output_names": ["y"], "dynamic_axes": {"x": {0: "batch"}}}
        torch.onnx.export(
            model.eval(), (x,), str(Path(folder) / f"{name.partition(':')[0]}.onnx"), **options, dynamo=False, opset_version=17
        )


if __name__ == "__main__":
    main()
