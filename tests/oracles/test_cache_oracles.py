# SPDX-License-Identifier: Apache-2.0
"""The cache simulator counts what independent simulators count: pycachesim (frozen), a 30-line LRU, and all its rules in Python."""

import json
from collections import Counter
from pathlib import Path
from random import Random

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from limits import SHARE
from oracles.lru import Lru
from oracles.rules import Rules
from oracles.traces import geometry, trace

from pysim.cachemodel.simulator.hierarchy import Cache, Hierarchy

FROZEN = json.loads(Path(__file__).with_name("pycachesim_frozen.json").read_text())
SLOW = settings(deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def named(levels):
    return [Cache(f"L{number + 1}", *level) for number, level in enumerate(levels)]


# ---- pycachesim: freeze_pycachesim.py says what each kind of case is ----


def frozen_trace(seed, kind):
    """Addresses, sizes and stores as pycachesim was given them."""
    addresses, sizes, stores = trace(seed, FROZEN["accesses"], FROZEN["span"], 1 if kind == "modify" else FROZEN["longest"])
    if kind == "lru":
        stores = np.zeros_like(stores)
    if kind != "modify":
        return addresses, sizes, stores
    twice = np.repeat(np.arange(len(addresses)), 1 + stores.astype(int))
    last = np.append(np.diff(twice) != 0, True)
    return addresses[twice], sizes[twice], stores[twice] & last


def frozen_hierarchy(levels, kind):
    caches = [msgspec.structs.replace(cache, policy="lru" if kind == "lru" else "fifo") for cache in named(levels)]
    if kind == "modify":
        caches[0] = msgspec.structs.replace(caches[0], policy="lru")
    if kind == "through":
        caches[0] = msgspec.structs.replace(caches[0], write_back=False, write_allocate=False)
    return Hierarchy(caches)


def as_pycachesim(result, kind):
    """LOAD, STORE, HIT, MISS, EVICT by pycachesim's rules; None where its L1 counts accesses, not lines."""
    rows = []
    for number, level in enumerate(result):
        c, first = result[level], number == 0
        through = first and kind == "through"  # store misses are no MISS there, and what is written through is an EVICT
        load = None if first else c.loads + c.store_misses
        sent = (c.stores if len(result.levels) > 1 else 0) if through else c.writebacks
        rows.append([load, None if first else c.stores, c.loads - c.load_misses, c.load_misses if through else c.misses, sent])
    return rows


def test_every_level_counts_what_pycachesim_counted():
    kinds = Counter()
    for case in FROZEN["cases"]:
        kind = FROZEN["kinds"][case["seed"] % len(FROZEN["kinds"])]
        hierarchy = frozen_hierarchy(geometry(case["seed"]), kind)
        ours = as_pycachesim(hierarchy.simulate(*frozen_trace(case["seed"], kind)), kind)
        for mine, theirs in zip(ours, case["levels"], strict=True):
            comparable = [None if count is None else their for count, their in zip(mine, theirs, strict=True)]
            assert mine == comparable, f"seed {case['seed']}, {kind}"
        kinds[kind] += 1
    assert min(kinds.values()) >= 100
    assert sum(level[4] for case in FROZEN["cases"] for level in case["levels"]) > 10_000, "the traces write nothing back"


# ---- a 30-line LRU, on 2,500 hierarchies and traces a run; PYSIM_LONG=1: on 500,000 ----


def conflicts(seed, count, levels):
    """Accesses that collide in the sets of some level: few places in a set, many lines that share them."""
    draw = Random(seed)
    sets, ways, line = levels[draw.randrange(len(levels))]
    lines, places = draw.randint(1, 2 * ways + 2), draw.randint(1, 4)
    bits = [draw.getrandbits(32) for _ in range(count)]
    addresses = [((b % lines) * sets + (b >> 8) % places) * line + (b >> 16) % line for b in bits]
    return addresses, [1 + (b >> 24) % 24 for b in bits], [(b >> 29) % 3 == 0 for b in bits]


def test_lru_hierarchies_count_what_the_ordered_dictionary_counts():
    seen = Counter()
    sizes = st.tuples(st.integers(1, 64), st.integers(1, 16), st.integers(0, 2))

    @settings(SLOW, max_examples=round(500_000 * SHARE))
    @given(st.lists(sizes, min_size=1, max_size=4), st.integers(2, 6), st.integers(0, 1 << 32), st.integers(1, 90))
    def compare(drawn, log_line, seed, count):
        levels = []
        for sets, ways, wider in drawn:
            log_line += wider if levels else 0
            levels.append((sets, ways, 1 << log_line))
        columns = conflicts(seed, count, levels)
        result, oracle = Hierarchy(named(levels)).simulate(*columns), Lru(levels)
        for address, size, write in zip(*columns, strict=True):
            oracle.access(address, size, write)
        for level, count in zip(result, oracle.count, strict=True):
            c = result[level]
            ours = {"loads": c.loads, "stores": c.stores, "misses": c.misses, "evictions": c.evictions, "writebacks": c.writebacks}
            assert ours == {name: count[name] for name in ours}
            seen.update(ours)
        seen["cases"] += 1

    compare()
    assert seen["cases"] >= round(500_000 * SHARE)
    assert min(seen["misses"], seen["evictions"], seen["writebacks"]) > 4 * seen["cases"], f"the traces are too tame: {seen}"


# ---- every rule once more in Python: all policies, write modes, inclusion, prefetch, several cores, owners, flush ----


def any_hierarchy(draw):
    levels, line, shared = [], draw.choice([16, 32, 64]), False
    for number in range(draw.randint(1, 4)):
        line = line * 2 if draw.random() < 0.4 else line
        shared = shared or draw.random() < 0.4
        policy = draw.choice(["lru", "lru", "plru", "fifo", "random"])
        cache = Cache(
            f"L{number + 1}",
            sets=draw.choice([1, 1, 2, 3, 4, 8]),
            ways=draw.choice([1, 2, 4, 8]) if policy == "plru" else draw.randint(1, 6),
            line_bytes=line,
            policy=policy,
            write_back=draw.random() < 0.7,
            write_allocate=draw.random() < 0.75,
            inclusion=draw.choice(["non-inclusive", "inclusive"]) if levels else "non-inclusive",
            prefetch=draw.choice([None, None, "next-line", "stream"]),
            prefetch_degree=draw.randint(1, 4),
            fetch_on_writeback=draw.random() < 0.5,
            shared=shared,
        )
        if levels and levels[-1].write_back and draw.random() < 0.35:
            line = levels[-1].line_bytes
            cache = msgspec.structs.replace(cache, inclusion="exclusive", line_bytes=line, write_back=True, prefetch=None)
        levels.append(cache)
    return levels


def any_trace(draw, cores):
    """Strides up and down between jumps, so that prefetchers train: addresses, sizes, stores, operands, phases, cores."""
    span, step, base, at = draw.choice([512, 2048, 16384]), draw.choice([0, 16, -32, 8]), draw.choice([0, 5 * 4096]), 0
    rows = []
    for _ in range(draw.randint(1, 150)):
        at = (at + step) % span if draw.random() < 0.5 else draw.randrange(span)
        size = draw.randint(1, draw.choice([4, 64, 200]))
        rows.append((base + at, size, draw.random() < 0.4, draw.randrange(8), draw.randrange(4), draw.randrange(cores)))
    return rows


def test_every_rule_holds_in_every_combination():
    seen = Counter()

    @settings(SLOW, max_examples=1_500)
    @given(st.integers(0, (1 << 64) - 1))
    def compare(seed):
        draw = Random(seed)
        levels, cores, flush = any_hierarchy(draw), draw.choice([1, 1, 2, 3]), draw.random() < 0.3
        rows = any_trace(draw, cores)
        addresses, sizes, stores, operands, phases, who = (np.array(column) for column in zip(*rows, strict=True))
        hierarchy, oracle = Hierarchy(levels, cores=cores, seed=seed), Rules(levels, cores, seed)
        result = hierarchy.simulate(addresses, sizes, stores, tags=operands | phases << 4, cores=who, flush=flush)
        for address, size, write, operand, phase, core in rows:
            oracle.access(address, size, write, (operand, phase), core)
        if flush:
            oracle.flush()
        for number, level in enumerate(result):
            for operand in range(8):
                for phase in range(4):
                    ours = {name: n for name, n in msgspec.structs.asdict(result.by(level, operand, phase)).items() if n}
                    assert ours == dict(+oracle.count[number].get((operand, phase), Counter())), (level, operand, phase)
                    seen.update(ours)
            for core in range(cores):
                places, dirty = hierarchy.contents(level, core)
                assert dict(zip(places.tolist(), dirty.tolist(), strict=True)) == oracle.contents(number, core)

    compare()
    assert len(seen) == 12, f"never seen: {set(msgspec.structs.asdict(result_of_nothing())) - set(seen)}"
    assert min(seen.values()) > 1000, f"too tame: {seen}"


def result_of_nothing():
    return Hierarchy([Cache("L1", 1, 1, 64)]).simulate([], [], [])["L1"]


def test_the_fast_path_and_the_rules_agree_on_default_hierarchies():
    """Two cores of which one does nothing take the path of the rules; one core takes the short one."""
    for seed in range(300):
        draw = Random(seed)
        levels = named((draw.choice([1, 4, 7, 64]), draw.choice([1, 3, 8, 16]), 64 << (k > 1)) for k in range(draw.randint(1, 4)))
        addresses, sizes, stores = trace(seed, 800, draw.choice([1 << 11, 1 << 15]), 70)
        tags = np.array([draw.randrange(8) | draw.randrange(4) << 4 for _ in addresses]) if seed % 2 else None
        short = Hierarchy(levels).simulate(addresses, sizes, stores, tags=tags)
        long = Hierarchy(levels, cores=2).simulate(addresses, sizes, stores, tags=tags)
        assert (short.counts == long.counts).all()
        assert short["L1"].hits > 0
