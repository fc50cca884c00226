# SPDX-License-Identifier: Apache-2.0
"""A convolution on NumPy arrays, planned for this computer, and the same with its weights prepared once."""

import numpy as np

import pysim

random = np.random.default_rng(0)
x = random.standard_normal((1, 64, 56, 56), np.float32)  # images, channels, height, width
weights = random.standard_normal((128, 64, 3, 3), np.float32)  # filters, channels, height, width

y = pysim.conv2d(x, weights, padding=1, activation="relu")
print(y.shape, y.dtype)

conv = pysim.prepare("conv:mb1ic64ih56oc128kh3ph1", weights, activation="relu")  # for many calls: plans and packs once
print("the same:", np.allclose(conv(x), y, rtol=1e-4, atol=1e-4))
