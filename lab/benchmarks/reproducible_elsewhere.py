# SPDX-License-Identifier: Apache-2.0
"""Whether another computer has the bits of this one: networks as a file, for which it needs neither onnx nor the models, and digests.

    python lab/benchmarks/reproducible_elsewhere.py NETWORKS --write MODEL.onnx ...     here
    python lab/benchmarks/reproducible_elsewhere.py NETWORKS --to FILE                  digests of each image, for each batch and threads
    python lab/benchmarks/reproducible_elsewhere.py NETWORKS --against FILE             there: exit code 1 if a digest differs
    qemu-ppc64le -cpu power10 -L ROOT ROOT/usr/bin/python3.13 lab/benchmarks/reproducible_elsewhere.py ... --machine power10-e1050

NETWORKS is a pickle: open only your own. Large weights in it are drawn anew, by whole numbers' arithmetic, so that it is small.
ROOT: Debian's packages for ppc64el of python3-numpy, -msgspec, -cffi, -tomlkit, -networkx, -scipy, unpacked by `dpkg -x`; the library is
built by `meson setup build-power10 --cross-file cross/power10.ini` (PYSIM_LIBRARY). PYSIM_MAX_TARGET limits vectors (with another
XDG_CACHE_HOME, where what this computer can do is kept).
"""

import argparse
import json
import pickle
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from reproducible_layers import at

from pysim.calibration import host
from pysim.network.execution import Network
from pysim.network.fingerprint import digest, parting, random_inputs
from pysim.network.graph import Graph

LARGE = 4096  # elements of a constant from which on it is drawn anew


def drawn(shape: tuple[int, ...]) -> Any:
    """Weights in float32 whose sums keep about the size of what they multiply, in random order of sign."""
    fan = np.float32(np.prod(shape[1:]) if len(shape) > 1 else shape[0])
    return (np.random.default_rng(len(shape) + sum(shape)).random(shape, np.float32) - np.float32(0.5)) * np.sqrt(np.float32(12) / fan)


def write(to: Path, paths: list[str], batches: list[int]) -> None:
    """The graphs of each model for each batch; constants that are alike are kept once."""
    from pysim.onnx.model import OnnxFile
    from pysim.onnx.reading import graph_of

    seen: dict[Any, Any] = {}
    found: dict[str, dict[int, Graph]] = {}
    for path in paths:
        file = OnnxFile(Path(path))
        graphs = {batch: graph_of(file.weighted(batch, 7), file.name) for batch in batches}
        shapes = [{name: array.shape for name, array in graph.constants.items()} for graph in graphs.values()]
        of = found.setdefault(Path(path).stem, {})
        for batch, graph in graphs.items():
            kept = dict[str, Any]()
            for name, array in graph.constants.items():
                large = array.size >= LARGE and array.dtype == np.float32 and all(one.get(name) == array.shape for one in shapes)
                kept[name] = array.shape if large else seen.setdefault((array.shape, array.dtype.str, array.tobytes()), array)
            of[batch] = graph._replace(constants=kept)
    to.write_bytes(pickle.dumps(found))


def network_of(graph: Graph, threads: int, machine: str) -> Network:
    constants = {name: drawn(one) if isinstance(one, tuple) else one for name, one in graph.constants.items()}
    return Network(graph._replace(constants=constants), host.runnable(machine), threads, "reproducible")


def digests(network: Network, place: int) -> list[str]:
    """Of each image the digests of the results; `place`: how the inputs lie in memory (`reproducible_layers.at`)."""
    made = network(**{name: at(place, x) for name, x in random_inputs(network.inputs).items()})
    results = made if isinstance(made, tuple) else (made,)
    if not all(np.isfinite(y).all() for y in results):
        raise SystemExit("a result is not finite, so its digest shows little")
    return [" ".join(digest(y[image]) for y in results) for image in range(len(results[0]))]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("networks", type=Path)
    options.add_argument("--write", nargs="+", metavar="MODEL")
    options.add_argument("--batches", nargs="+", type=int, default=[1, 3])
    options.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    options.add_argument("--places", nargs="+", type=int, default=[0, 1, 2, 3], help="of the inputs in memory")
    options.add_argument("--machine", default="host")
    options.add_argument("--only", nargs="+", metavar="NETWORK")
    options.add_argument("--seconds", type=float, default=float("inf"), help="begin no network after so many")
    options.add_argument("--to", type=Path)
    options.add_argument("--against", type=Path)
    given = options.parse_args()
    if given.write:
        write(given.networks, given.write, given.batches)
        return 0
    began, differ, ran, found = time.monotonic(), 0, 0, dict[str, Any]()
    known: dict[str, Any] = json.loads(given.against.read_text()) if given.against else {}
    for name, graphs in pickle.loads(given.networks.read_bytes()).items():
        if (given.only and name not in given.only) or time.monotonic() - began > given.seconds:
            continue
        if given.against and name not in known:
            raise SystemExit(f"{given.against} has no digests of {name}")
        first, layers, results, parted = known.get(name, {}).get("images", []), None, 0, 0
        for batch in given.batches:
            for threads in given.threads:
                network = network_of(graphs[batch], threads, given.machine)
                layers = layers or network.fingerprint(**random_inputs(network.inputs))
                for place in given.places:
                    made = digests(network, place)
                    results, parted = results + len(made), parted + sum(a != b for a, b in zip(made, first, strict=False))
                    first = first if len(first) >= len(made) else made
        found[name], differ, ran = {"images": first, "layers": layers}, differ + parted, ran + 1
        where = f"; they part at {parting(layers or [], known[name]['layers'])}" if given.against and parted else ""
        print(f"{name}: {results} results of images, {parted} differ{where}", flush=True)
        if given.to:
            given.to.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{ran} networks, {differ} results differ" + f" from {given.against}" * bool(given.against))
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
