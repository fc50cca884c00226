# SPDX-License-Identifier: Apache-2.0
"""The default hierarchy in as few lines as it takes: LRU, write-back, write-allocate, non-inclusive, any number of levels."""

from collections import Counter, OrderedDict


class Lru:
    """levels: (sets, ways, line bytes), L1 first. `count[i]` are the events of level i."""

    def __init__(self, levels):
        self.levels = levels
        self.sets = [[OrderedDict() for _ in range(sets)] for sets, _, _ in levels]  # line -> dirty, least recent first
        self.count = [Counter() for _ in levels]

    def access(self, address, size, write):
        line = self.levels[0][2]
        for number in range(address // line, (address + size - 1) // line + 1):
            self.request(0, number * line, write)

    def request(self, i, address, write):
        if i == len(self.levels):
            return
        sets, ways, line = self.levels[i]
        number, count = address // line, self.count[i]
        held = self.sets[i][number % sets]
        count["stores" if write else "loads"] += 1
        if number not in held:
            count["misses"] += 1
            self.request(i + 1, number * line, False)
            held[number] = False
            if len(held) > ways:
                victim, dirty = held.popitem(last=False)
                count["evictions"] += 1
                if dirty:
                    count["writebacks"] += 1
                    self.request(i + 1, victim * line, True)
        held[number] |= write
        held.move_to_end(number)
