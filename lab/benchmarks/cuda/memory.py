# SPDX-License-Identifier: Apache-2.0
"""Memory of a network's calls on a GPU in this process: python lab/benchmarks/cuda/memory.py NETWORK BATCH PRECISION WAY

WAY: inductor, alone (`optimize` without PyTorch's compiler) or compiled. Networks of `zoo.py`; precisions f32 (TF32 off), tf32, half. One
JSON line: MB that PyTorch's allocator has given out and has reserved once the model is on the device, after the first call, after what is
free was given back, and with a CUDA graph of the call; and MB given out at the peak of a call.
"""

import argparse
import json
from functools import partial
from typing import Any

import torch
from models import captured
from zoo import model_and_input

import pysim.torch


def megabytes() -> tuple[float, float]:
    return round(torch.cuda.memory_allocated() / 1e6, 1), round(torch.cuda.memory_reserved() / 1e6, 1)


def call_of(model: Any, x: Any, way: str) -> partial[Any]:
    if way == "inductor":
        return partial(torch.compile(model, dynamic=False), x)
    return partial(pysim.torch.optimize(model, cuda_graph="caller", compiler=way == "compiled"), x)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("batch", type=int)
    parser.add_argument("precision", choices=["f32", "tf32", "half"])
    parser.add_argument("way", choices=["inductor", "alone", "compiled"])
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = given.precision == "tf32"
    torch.backends.cudnn.benchmark = True
    model, x = model_and_input(given.network, given.batch, lambda: None)
    if given.precision == "half":
        model, x = model.half(), x.half() if x.is_floating_point() else x
    if x.dim() == 4:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    found: dict[str, Any] = {"case": [given.network, str(given.batch), given.precision, given.way], "start": megabytes()}
    call = call_of(model, x, given.way)
    call()
    torch.cuda.synchronize()
    found["after first"] = megabytes()
    torch.cuda.empty_cache()
    found["emptied"] = megabytes()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    found["peak of a call"] = round(torch.cuda.max_memory_allocated() / 1e6, 1)
    torch.cuda.empty_cache()
    graph = captured(call)
    found["graph"] = megabytes()
    graph()
    torch.cuda.empty_cache()
    found["graph emptied"] = megabytes()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
