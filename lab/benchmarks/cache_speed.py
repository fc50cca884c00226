# SPDX-License-Identifier: Apache-2.0
"""Accesses a second of the cache simulator on a packed-tile trace (zen4, three levels), beside pycachesim where it is installed.

The trace has the accesses of an AVX-512 micro-kernel of 32 windows x 14 filters on packed operands: a k-iteration reads two vectors of
the input tile and broadcasts 14 filter values; a call ends by reading and writing its 14 x 2 output vectors. Filter tiles
stream past each input tile (input-stationary). Both simulators get the same accesses in the same order and in their cheapest
form: arrays for ours, lists of Python integers in runs of loads and of stores for the other; emptying the caches is not timed. Samples are
interleaved.

    python lab/benchmarks/cache_speed.py [-n samples] [-o file.json]
"""

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from pysim.cachemodel.simulator.hierarchy import Hierarchy, Result

WINDOWS, FILTERS, VECTOR, ELEMENT = 32, 14, 64, 4
STEPS, FILTER_TILES, INPUT_TILES, CHANNEL_SETS = 16 * 3 * 3, 5, 98, 2  # 3x3; 70 filters; 56 x 56 windows; 2 x 16 channels
PEER = "cachesim"


def call_pattern() -> dict[str, np.ndarray]:
    """One micro-kernel call: offsets into input tile (0), filter tile (1) or output (2), bytes, and which are stores."""
    rows = np.arange(STEPS)[:, None]
    inputs = rows * WINDOWS * ELEMENT + np.arange(0, WINDOWS * ELEMENT, VECTOR)
    filters = rows * FILTERS * ELEMENT + np.arange(0, FILTERS * ELEMENT, ELEMENT)
    steps = np.hstack([inputs, filters])
    operand = np.broadcast_to(np.repeat([0, 1], [inputs.shape[1], FILTERS]), steps.shape)
    row = INPUT_TILES * WINDOWS * ELEMENT  # of the output, in bytes
    out = (np.arange(FILTERS)[:, None] * row + np.arange(0, WINDOWS * ELEMENT, VECTOR)).ravel()
    sizes = np.where(operand == 0, VECTOR, ELEMENT)
    return {
        "offset": np.concatenate([steps.ravel(), out, out]),
        "operand": np.concatenate([operand.ravel(), np.full(2 * out.size, 2)]),
        "size": np.concatenate([sizes.ravel(), np.full(2 * out.size, VECTOR)]).astype(np.int32),
        "write": np.concatenate([np.zeros(steps.size + out.size, bool), np.ones(out.size, bool)]),
    }


def trace() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Addresses, sizes and stores of the whole loop nest: filter tiles pass each input tile, whose buffer is used again."""
    call = call_pattern()
    shape = CHANNEL_SETS, INPUT_TILES, FILTER_TILES
    c, i, f = (grid.ravel() for grid in np.indices(shape))
    filters = (c * FILTER_TILES + f) * STEPS * FILTERS * ELEMENT
    output = f * FILTERS * INPUT_TILES * WINDOWS * ELEMENT + i * WINDOWS * ELEMENT
    starts = np.stack([0 * i, filters, output], axis=1) + np.array([1 << 20, 1 << 24, 1 << 28])
    addresses = (starts[:, call["operand"]] + call["offset"]).ravel()
    return addresses, np.tile(call["size"], len(i)), np.tile(call["write"], len(i))


def runs(addresses: np.ndarray, is_write: np.ndarray) -> list[tuple[bool, list[int]]]:
    """The trace as maximal runs of loads or stores."""
    cuts = np.flatnonzero(np.diff(is_write.astype(np.int8))) + 1
    return [(bool(is_write[a]), addresses[a:b].tolist()) for a, b in zip([0, *cuts], [*cuts, len(addresses)], strict=True)]


def peer_simulator(hierarchy: Hierarchy) -> Any:
    from cachesim import Cache, CacheSimulator, MainMemory

    memory, outer = MainMemory(), None
    for level in reversed(hierarchy.levels):
        cache = Cache(level.name, level.sets, level.ways, level.line_bytes, "LRU", load_from=outer, store_to=outer)
        if outer is None:
            memory.load_to(cache)
            memory.store_from(cache)
        outer = cache
    return CacheSimulator(outer, memory)


def run_peer(simulator: Any, pieces: list[tuple[bool, list[int]]]) -> float:
    simulator.mark_all_invalid()
    start = time.perf_counter()
    for write, addresses in pieces:
        (simulator.store if write else simulator.load)(addresses)
    return time.perf_counter() - start


def run_here(hierarchy: Hierarchy, columns: tuple[np.ndarray, ...]) -> tuple[float, Result]:
    hierarchy.reset()
    start = time.perf_counter()
    result = hierarchy.simulate(*columns, warm=True)
    return time.perf_counter() - start, result


def summary(seconds: list[float], accesses: int) -> dict[str, float]:
    low, middle, high = np.quantile(accesses / np.array(seconds), [0.25, 0.5, 0.75])
    return {"accesses_per_second": float(middle), "lower_quartile": float(low), "upper_quartile": float(high)}


def ratio(here: list[float], there: list[float]) -> dict[str, float]:
    """Median of the paired ratios, with a bootstrap interval of 95 %."""
    paired = np.array(there) / np.array(here)
    again = np.random.default_rng(0).choice(paired, (2000, len(paired)))
    low, high = np.quantile(np.median(again, axis=1), [0.025, 0.975])
    return {"median": float(np.median(paired)), "low": float(low), "high": float(high)}


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "cpu\t"))), platform.machine())


def measure(samples: int) -> dict[str, Any]:
    columns = trace()
    hierarchy = Hierarchy.from_machine("zen4")
    peer = peer_simulator(hierarchy) if importlib.util.find_spec(PEER) else None
    pieces = runs(columns[0], columns[2]) if peer else []
    here, there = [], []
    for sample in range(samples + 1):
        seconds, result = run_here(hierarchy, columns)
        other = run_peer(peer, pieces) if peer else 0.0
        if sample:  # the first is the warm-up
            here.append(seconds)
            there.append(other)
    document: dict[str, Any] = {
        "schema": 1,
        "command": "python lab/benchmarks/cache_speed.py " + " ".join(sys.argv[1:]),
        "cpu": cpu_name(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__},
        "samples": samples,
        "accesses": len(columns[0]),
        "pysim": summary(here, len(columns[0])) | {"misses": {level: result[level].misses for level in result}},
    }
    if peer:
        misses = {level["name"]: level["MISS_count"] for level in list(peer.stats())[: len(hierarchy.levels)]}
        document["versions"]["pycachesim"] = importlib.metadata.version("pycachesim")
        document["pycachesim"] = summary(there, len(columns[0])) | {"misses": misses}
        document["ratio"] = ratio(here, there)
    return document


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--samples", type=int, default=30)
    parser.add_argument("-o", "--output", type=Path, help="also write the JSON here")
    arguments = parser.parse_args()
    text = json.dumps(measure(arguments.samples), indent=2)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")
