# SPDX-License-Identifier: Apache-2.0
"""CPU time until a PyTorch model's first result in a new process, by capture and from a file of `pysim.torch.save`, one thread.

    python lab/benchmarks/torch_saved.py -o lab/data/zen4/torch-saved.jsonl [--rounds 3] [MODEL of torchvision ...]

Imports and the model's own construction are not counted. `look`: seconds that a call looks whether the model is what it was, least of 200.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pysim
from pysim.calibration import host


def once(name: str, how: str, path: str) -> dict[str, float]:
    """In this process: "save", "capture" or "load"."""
    import torch
    import torchvision

    import pysim.torch
    from pysim.torch.model_state import ModelState

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, x = torchvision.models.get_model(name, weights=None).eval(), torch.rand(1, 3, 224, 224)
    if how == "save":
        pysim.torch.save(model, path, x)
        return {}
    start = time.process_time()
    with torch.no_grad():
        (pysim.torch.load(path, model) if how == "load" else pysim.torch.optimize(model))(x)
    seconds, state, looks = time.process_time() - start, ModelState(model), []
    for _ in range(200):
        begin = time.process_time()
        state.unchanged()
        looks.append(time.process_time() - begin)
    return {"seconds": seconds, "look": min(looks)}


def in_new_process(name: str, how: str, path: str) -> dict[str, float]:
    command = [sys.executable, __file__, name, "--how", how, "--path", path]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found: dict[str, float] = json.loads(
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="*", default=["resnet50"])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("-o", "--out", type=Path)
    options.add_argument("--how", help=argparse.SUPPRESS)
    options.add_argument("--path", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.how:
        print(json.dumps(once(given.models[0], given.how, given.path)))
        return
    lines = [{"kind": "header", "machine": host.runnable("host").name, "pysim": pysim.__version__, "rounds": given.rounds}]
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models:
            path = f"{folder}/{name}.pysim"
            in_new_process(name, "save", path)
            rounds = [(in_new_process(name, "capture", path), in_new_process(name, "load", path)) for _ in range(given.rounds)]
            lines.append(
                {
                    "model": name,
                    "capture": [round(one["seconds"], 3) for one, _ in rounds],
                    "file": [round(one["seconds"], 3) for _, one in rounds],
                    "look": round(min(one["look"] for _, one in rounds), 6),
                }
            )
            print(lines[-1])
    if given.out:
        given.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
