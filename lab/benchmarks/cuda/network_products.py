# SPDX-License-Identifier: Apache-2.0
"""Draws products that networks and solvers compute: layers of transformers (from one token to 32 sequences), convolutions of 1x1 and
classifiers, with weights as (outputs, inputs); for f64 panels, updates and squares of solvers.

Worked number: an image of 224 x 224 is 197 tokens of a vision transformer, so 32 of them are 6304 rows.
"""

import numpy as np

WIDTHS = (  # of a transformer: hidden, of its feed-forward layer
    (384, 1536), (512, 2048), (768, 3072), (1024, 4096), (1152, 4304), (1280, 5120), (2048, 8192), (3584, 18944), (4096, 11008),
    (4096, 14336), (5120, 13824),
)  # fmt: skip
DECODED, SEQUENCES, TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64), (1, 2, 4, 8, 16, 32), (77, 128, 196, 197, 256, 384, 512, 577, 1024)
POINTWISE = (  # input and output channels, height and width
    (64, 64, 56), (64, 256, 56), (256, 64, 56), (256, 128, 56), (128, 512, 28), (512, 128, 28), (512, 256, 28), (256, 1024, 14),
    (1024, 256, 14), (1024, 512, 14), (512, 2048, 7), (2048, 512, 7), (96, 24, 56), (24, 144, 56), (144, 32, 28), (192, 32, 28),
    (384, 64, 14), (96, 576, 14), (576, 160, 7), (960, 320, 7), (96, 384, 56), (192, 768, 28), (384, 1536, 14), (768, 3072, 7),
    (3072, 768, 7),
)  # fmt: skip
IMAGES, CLASSES, FEATURES = (1, 8, 32), 1000, (512, 768, 1280, 2048)
SOLVER = (
    (4096, 4096, 64), (8192, 8192, 128), (20000, 64, 64), (2048, 2048, 2048), (4096, 64, 4096), (1000, 1000, 1000), (512, 512, 4096),
    (10000, 32, 10000), (3000, 3000, 100), (6000, 200, 6000), (1024, 1024, 32), (384, 384, 384),
)  # fmt: skip


def drawn(dtype: str, count: int, seed: int, most: float) -> list[str]:
    """Different products of a type, of up to `most` multiply-adds."""
    draw, found = np.random.default_rng([seed, sum(map(ord, dtype))]), dict[str, None]()
    while len(found) < count:
        m, n, k, layout = (_of_solver if dtype == "f64" else _of_network)(draw)
        if m * n * k <= most:
            found[f"gemm:{m}x{n}x{k}:{layout}:{dtype}"] = None
    return [*found]


def _of_network(draw: np.random.Generator) -> tuple[int, int, int, str]:
    kind = draw.random()
    if kind < 0.7:
        hidden, wide = draw.choice(WIDTHS)
        n, k = ((hidden, hidden), (3 * hidden, hidden), (wide, hidden), (hidden, wide))[draw.integers(4)]
        m = draw.choice(DECODED) if draw.random() < 0.4 else draw.choice(SEQUENCES) * draw.choice(TOKENS)
        return int(m), int(n), int(k), "nt" if draw.random() < 0.85 else "nn"
    if kind < 0.95:
        channels, filters, height = map(int, draw.choice(POINTWISE))
        return int(draw.choice(IMAGES)) * height**2, filters, channels, "nt"
    return int(draw.choice((*IMAGES, 64))), CLASSES, int(draw.choice(FEATURES)), "nt"


def _of_solver(draw: np.random.Generator) -> tuple[int, int, int, str]:
    m, n, k = (max(8, int(size * draw.uniform(0.6, 1.5)) // 8 * 8) for size in draw.choice(SOLVER))
    return m, n, k, str(draw.choice(("nn", "nt", "tn")))
