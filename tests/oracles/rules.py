# SPDX-License-Identifier: Apache-2.0
"""Every rule of `native/simulator/simulate_levels.h` once more, in Python: policies, write modes, inclusion, coherence, prefetch, owners.

Written for the reader, not for speed: a way is a small object, a set is a list of ways (None where empty), a victim is found by
searching. Nothing here knows how the native library stores anything.
"""

from collections import Counter, defaultdict

MASK = (1 << 64) - 1


class Way:
    def __init__(self, line, owner, dirty, prefetched):
        self.line, self.owner, self.dirty, self.prefetched = line, owner, dirty, prefetched
        self.used = self.filled = 0


class Splitmix:
    def __init__(self, seed):
        self.state = seed & MASK

    def below(self, bound):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) >> 32) * bound >> 32


class OneCache:
    """One cache of one core (or of all): which line goes when."""

    def __init__(self, spec, seed):
        self.spec, self.clock, self.random = spec, 0, Splitmix(seed)
        self.sets = [[None] * spec.ways for _ in range(spec.sets)]
        self.points_right = [{} for _ in range(spec.sets)]  # PLRU: (first way, ways) of a subtree -> the victim lies right
        self.streams = []  # (page, last line, direction), last used first

    def find(self, line):
        for way in self.sets[line % self.spec.sets]:
            if way and way.line == line:
                return way
        return None

    def use(self, way):
        self.clock += 1
        way.used = self.clock
        tree, first, ways = self.points_right[way.line % self.spec.sets], 0, self.spec.ways
        index = self.sets[way.line % self.spec.sets].index(way)
        while ways > 1 and self.spec.policy == "plru":
            right = index >= first + ways // 2
            tree[first, ways] = not right
            ways //= 2
            first += ways if right else 0

    def victim(self, line):
        """Index of the way that a fill of this line takes."""
        ways = self.sets[line % self.spec.sets]
        if None in ways:
            return ways.index(None)
        if self.spec.policy == "lru":
            return min(range(len(ways)), key=lambda k: ways[k].used)
        if self.spec.policy == "fifo":
            return min(range(len(ways)), key=lambda k: ways[k].filled)
        if self.spec.policy == "random":
            return self.random.below(len(ways))
        tree, first, count = self.points_right[line % self.spec.sets], 0, len(ways)
        while count > 1:
            right = tree.get((first, count), False)
            count //= 2
            first += count if right else 0
        return first

    def put(self, index, way):
        self.sets[way.line % self.spec.sets][index] = way
        self.use(way)
        way.filled = self.clock

    def take(self, way):
        ways = self.sets[way.line % self.spec.sets]
        ways[ways.index(way)] = None


class Rules:
    """specs: anything with the fields of pysim's Cache. `count[i][owner]` are the events of level i under a tag."""

    def __init__(self, specs, cores=1, seed=0):
        self.specs, self.cores = specs, cores
        self.caches = [[OneCache(spec, seed + (i << 32) + c) for c in range(1 if spec.shared else cores)] for i, spec in enumerate(specs)]
        self.count = [defaultdict(Counter) for _ in specs]
        self.private = sum(not spec.shared for spec in specs) if cores > 1 else 0
        self.pending = []

    def cache(self, i, core):
        return self.caches[i][0 if self.specs[i].shared else core]

    def at(self, i, core, address):
        """The cache, the line number and the way (or None) for an address at level i."""
        cache = self.cache(i, core)
        line = address // self.specs[i].line_bytes
        return cache, line, cache.find(line)

    def add(self, i, owner, **events):
        count = self.count[i][owner]
        for name, number in events.items():  # an update of the counter takes three times as long
            count[name] += number

    def access(self, address, size, write, owner=0, core=0):
        line = self.specs[0].line_bytes
        end = address + size
        while address < end:
            stop = min(end, (address // line + 1) * line)
            self.touch(core, address, stop - address, write, owner)
            address = stop

    def touch(self, core, address, size, write, owner):
        if write:
            way = self.at(0, core, address)[2]
            if self.private and not (way and way.dirty):
                self.settle_others(core, address, drop=True)
            self.store(0, core, address, size, owner, "core")
        else:
            self.load(0, core, address, owner, True)
        for i, line in self.pending:
            bytes_ = self.specs[i].line_bytes
            if not self.cache(i, core).find(line):
                self.add(i, owner, prefetches=1, bytes_read=bytes_)
                self.fill(i, core, line, owner, self.load(i + 1, core, line * bytes_, owner, False), prefetched=True)
        self.pending = []

    def load(self, i, core, address, owner, trains):
        """True where an exclusive level gave a dirty line away."""
        if self.private and i == self.private:
            self.settle_others(core, address, drop=False)
        if i == len(self.specs):
            return False
        spec = self.specs[i]
        cache, line, way = self.at(i, core, address)
        self.add(i, owner, loads=1)
        if way:
            self.first_use(i, core, way, owner, trains)
            if spec.inclusion == "exclusive":
                cache.take(way)
                return way.dirty
            cache.use(way)
            return False
        self.add(i, owner, load_misses=1, bytes_read=spec.line_bytes)
        if trains:
            self.train(i, core, line)
        dirty = self.load(i + 1, core, line * spec.line_bytes, owner, trains)
        if spec.inclusion != "exclusive":
            self.fill(i, core, line, owner, dirty)
            dirty = False
        return dirty

    def store(self, i, core, address, size, owner, source):
        if i == len(self.specs):
            return
        spec = self.specs[i]
        cache, line, way = self.at(i, core, address)
        self.add(i, owner, stores=1)
        if way:
            self.first_use(i, core, way, owner, source == "core")
            cache.use(way)
            way.owner = owner
        else:
            self.add(i, owner, store_misses=1)
            if spec.write_allocate and spec.inclusion != "exclusive":
                way = self.allocate(i, core, line, size, owner, source)
        if way and spec.write_back:
            way.dirty = True
        else:
            self.add(i, owner, bytes_written=size)
            self.store(i + 1, core, address, size, owner, "through")

    def allocate(self, i, core, line, size, owner, source):
        spec, dirty = self.specs[i], False
        if source == "core":
            self.train(i, core, line)
        if source == "victim" and size == spec.line_bytes and not spec.fetch_on_writeback:
            if i + 1 < len(self.specs) and self.specs[i + 1].inclusion == "exclusive":
                old = self.cache(i + 1, core).find(line)
                if old:
                    self.cache(i + 1, core).take(old)
        else:
            self.add(i, owner, bytes_read=spec.line_bytes)
            dirty = self.load(i + 1, core, line * spec.line_bytes, owner, source == "core")
        self.fill(i, core, line, owner, dirty or spec.write_back)
        return self.cache(i, core).find(line)

    def fill(self, i, core, line, owner, dirty, prefetched=False):
        spec, cache = self.specs[i], self.cache(i, core)
        index = cache.victim(line)
        old = cache.sets[line % spec.sets][index]
        if old and spec.inclusion == "inclusive":
            for inner in range(i):
                together = spec.shared and not self.specs[inner].shared
                for c in range(self.cores) if together else [core]:
                    self.settle(inner, c, old.line * spec.line_bytes, spec.line_bytes, drop=True)
        cache.put(index, Way(line, owner, dirty, prefetched))
        if not old:
            return
        exclusive = i + 1 < len(self.specs) and self.specs[i + 1].inclusion == "exclusive"
        self.add(i, old.owner, evictions=1, writebacks=int(old.dirty))
        self.add(i, old.owner, bytes_written=spec.line_bytes if old.dirty or exclusive else 0)
        if exclusive:
            self.receive(i + 1, core, old)
        elif old.dirty:
            self.store(i + 1, core, old.line * spec.line_bytes, spec.line_bytes, old.owner, "victim")

    def receive(self, i, core, old):
        cache = self.cache(i, core)
        self.add(i, old.owner, victims=1)
        way = cache.find(old.line)
        if way:
            cache.use(way)
            way.dirty = way.dirty or old.dirty
        else:
            self.fill(i, core, old.line, old.owner, old.dirty)

    def settle_others(self, core, address, drop):
        unit = max(spec.line_bytes for spec in self.specs[: self.private])
        for c in range(self.cores):
            for i in range(self.private if c != core else 0):
                self.settle(i, c, address // unit * unit, unit, drop)

    def settle(self, i, core, address, size, drop):
        """Level i of this core writes back what it holds of these bytes, and gives it up where `drop` is set."""
        spec = self.specs[i]
        for at in range(address, address + size, spec.line_bytes):
            cache, _, way = self.at(i, core, at)
            if way and way.dirty:
                self.add(i, way.owner, writebacks=1, bytes_written=spec.line_bytes)
                self.absorb(i + 1, core, at, spec.line_bytes, way.owner)
                way.dirty = False
            if way and drop:
                self.add(i, way.owner, invalidations=1)
                cache.take(way)

    def absorb(self, i, core, address, size, owner):
        for outer in range(i, len(self.specs)):
            way = self.at(outer, core, address)[2]
            self.add(outer, owner, stores=1, store_misses=int(not way))
            if way and self.specs[outer].write_back:
                way.dirty = True
                return
            self.add(outer, owner, bytes_written=size)

    def first_use(self, i, core, way, owner, trains):
        if way.prefetched:
            way.prefetched = False
            self.add(i, owner, prefetch_hits=1)
            if trains:
                self.train(i, core, way.line)

    def train(self, i, core, line):
        spec, cache = self.specs[i], self.cache(i, core)
        per_page = max(4096 // spec.line_bytes, 1)
        page, step = line // per_page, 1 if spec.prefetch == "next-line" else 0
        if spec.prefetch == "stream":
            page = line * spec.line_bytes // 4096
            known = next((stream for stream in cache.streams if stream[0] == page), (page, line, 0))
            direction = (line > known[1]) - (line < known[1])
            step = direction if direction == known[2] else 0
            rest = [stream for stream in cache.streams if stream[0] != page][:15]
            cache.streams = [(page, line, direction or known[2]), *rest]
        for k in range(1, spec.prefetch_degree + 1) if step else ():
            if (line + k * step) // per_page == line // per_page:
                self.pending.append((i, line + k * step))

    def flush(self):
        for i, caches in enumerate(self.caches):
            for core, cache in enumerate(caches):
                for way in [way for ways in cache.sets for way in ways if way and way.dirty]:
                    self.settle(i, core, way.line * self.specs[i].line_bytes, 1, drop=False)

    def contents(self, i, core=0):
        """{byte address: dirty} of one cache."""
        found = [way for ways in self.cache(i, core).sets for way in ways if way]
        return {way.line * self.specs[i].line_bytes: way.dirty for way in found}
