# SPDX-License-Identifier: Apache-2.0
"""Writes pycachesim_frozen.json: what pycachesim counts on traces and hierarchies drawn from seeds.

pycachesim is AGPL and no dependency: run this in an environment of its own (`pip install pycachesim==0.3.1 numpy`), as
`python freeze_pycachesim.py`. Its set index is the line number modulo the sets, and its lines are powers of two.

Its LRU does not take a store that hits for a use of the line, ours (and hardware) does. So a case is one of these KINDS:
lru loads only; fifo loads and stores; modify: L1 lru and the rest fifo, and each store follows a load of its bytes, which lie in
one line; through: fifo, L1 write-through without write-allocate.
"""

import json
from importlib.metadata import version
from pathlib import Path

from cachesim import Cache, CacheSimulator, MainMemory
from traces import geometry, trace

CASES, ACCESSES, SPAN, LONGEST = 400, 600, 1 << 14, 40
COUNTERS = ("LOAD_count", "STORE_count", "HIT_count", "MISS_count", "EVICT_count")
KINDS = ("lru", "fifo", "modify", "through")


def build(levels, kind):
    memory, outer = MainMemory(), None
    for number, (sets, ways, line) in reversed(list(enumerate(levels))):
        policy = "LRU" if kind == "lru" or (kind == "modify" and number == 0) else "FIFO"
        back = kind != "through" or number > 0
        cache = Cache(f"L{number + 1}", sets, ways, line, policy, write_back=back, write_allocate=back, load_from=outer, store_to=outer)
        if outer is None:
            memory.load_to(cache)
            memory.store_from(cache)
        outer = cache
    return CacheSimulator(outer, memory)


def count(seed):
    """Per level, the COUNTERS after the trace of this seed through the hierarchy of this seed."""
    kind, levels = KINDS[seed % len(KINDS)], geometry(seed)
    simulator = build(levels, kind)
    columns = trace(seed, ACCESSES, SPAN, 1 if kind == "modify" else LONGEST)
    for address, size, write in zip(*(column.tolist() for column in columns), strict=True):
        if not write or kind in ("lru", "modify"):
            simulator.load(address, length=size)
        if write and kind != "lru":
            simulator.store(address, length=size)
    return [[level[name] for name in COUNTERS] for level in list(simulator.stats())[: len(levels)]]


if __name__ == "__main__":
    document = {
        "made_by": f"freeze_pycachesim.py, pycachesim {version('pycachesim')}",
        "accesses": ACCESSES,
        "span": SPAN,
        "longest": LONGEST,
        "counters": COUNTERS,
        "kinds": KINDS,
        "cases": [{"seed": seed, "levels": count(seed)} for seed in range(CASES)],
    }
    text = json.dumps(document, separators=(",", ":")).replace('{"seed"', '\n{"seed"')
    Path(__file__).with_name("pycachesim_frozen.json").write_text(text + "\n")
