/* SPDX-License-Identifier: Apache-2.0
 * The interaction of cache levels: fills, evictions, write-backs, inclusion, coherence, prefetch (rules: simulate_levels.h). Calls go outward (level i calls
 * level i+1), so the depth is bounded by the number of levels; the only inward call drops a line. */
#include "simulate_levels.h"
#include <string.h>

enum { THROUGH = 0, VICTIM = 1, CORE = 2 }; /* origin of a store: written through, a displaced line, the core */

static uint64_t owner_of(uint64_t word) { return (word & PYSIM_OWNER) >> 3; }

static uint64_t line_of(const pysim_level *l, uint64_t address) { return address >> l->shift; }

static uint64_t address_of(const pysim_level *l, uint64_t word) { return (word >> 8) << l->shift; }

static pysim_set set_of(const pysim_level *l, int32_t core, uint64_t line) {
    char *cache = pysim_cache_of(l, core);
    uint64_t index = pysim_set_index(l, line);
    return (pysim_set){(pysim_way *)(cache + l->ways) + index * (uint64_t)l->is.ways, (uint64_t *)(cache + l->trees) + index,
                       (uint64_t *)cache};
}

static int64_t find(const pysim_level *l, pysim_set set, uint64_t line) { return pysim_find(set.ways, l->is.ways, line); }

/* A hit on `way`. */
static void use(pysim_simulation *s, const pysim_level *l, pysim_set set, int64_t way) {
    if (l->is.policy == PYSIM_LRU) set.ways[way].time = ++*s->clock;
    if (l->is.policy == PYSIM_PLRU) *set.tree = pysim_tree_use(*set.tree, l->is.ways, way);
}

/* The way for the next fill: an empty one, or the policy's choice. */
static int64_t choose(const pysim_level *l, pysim_set set) {
    int64_t ways = l->is.ways;
    if (l->is.policy == PYSIM_LRU || l->is.policy == PYSIM_FIFO) return pysim_earliest(set.ways, ways);
    for (int64_t way = 0; way < ways; ++way)
        if (set.ways[way].word == 0) return way;
    if (l->is.policy == PYSIM_PLRU) {
        int64_t node = 1;
        while (node < ways) node = 2 * node + (int64_t)(*set.tree >> node & 1);
        return node - ways;
    }
    uint64_t z = *set.random += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return (int64_t)(((z ^ z >> 31) >> 32) * (uint64_t)ways >> 32);
}

static void put(pysim_simulation *s, const pysim_level *l, pysim_set set, int64_t way, uint64_t word) {
    set.ways[way].word = word;
    if (l->is.policy == PYSIM_FIFO) set.ways[way].time = ++*s->clock;
    use(s, l, set, way);
}

/* Removes the line from the set and returns its word. */
static uint64_t take(pysim_set set, int64_t way) {
    uint64_t word = set.ways[way].word;
    set.ways[way] = (pysim_way){0, 0};
    return word;
}

/* Writes data back from the level inside i without moving or allocating lines; ends at the first write-back level that holds the line. */
static void absorb(pysim_simulation *s, int32_t i, int32_t core, uint64_t address, int64_t bytes, uint64_t owner) {
    for (; i < s->levels; ++i) {
        pysim_level *l = &s->level[i];
        pysim_cache_counters *count = &l->count[owner];
        pysim_set set = set_of(l, core, line_of(l, address));
        int64_t way = find(l, set, line_of(l, address));
        count->stores++;
        if (way >= 0 && l->is.write_back) {
            set.ways[way].word |= PYSIM_DIRTY;
            return;
        }
        count->store_misses += way < 0;
        count->bytes_written += bytes;
    }
}

/* Writes the line at `address` back if level i of this core holds it dirty; also drops it if `drop` is set. */
static void yield(pysim_simulation *s, int32_t i, int32_t core, uint64_t address, int drop) {
    pysim_level *l = &s->level[i];
    pysim_set set = set_of(l, core, line_of(l, address));
    int64_t way = find(l, set, line_of(l, address));
    if (way < 0) return;
    uint64_t owner = owner_of(set.ways[way].word);
    pysim_cache_counters *count = &l->count[owner];
    if (set.ways[way].word & PYSIM_DIRTY) {
        count->writebacks++;
        count->bytes_written += l->is.line_bytes;
        absorb(s, i + 1, core, address, l->is.line_bytes, owner);
        set.ways[way].word &= ~PYSIM_DIRTY;
    }
    if (drop) {
        count->invalidations++;
        take(set, way);
    }
}

static void yield_range(pysim_simulation *s, int32_t i, int32_t core, uint64_t address, int64_t bytes, int drop) {
    for (int64_t at = 0; at < bytes; at += s->level[i].is.line_bytes) yield(s, i, core, address + (uint64_t)at, drop);
}

/* Before the inclusive level i evicts the line at `address`, the inner levels drop it, innermost first. */
static void drop_inside(pysim_simulation *s, int32_t i, int32_t core, uint64_t address) {
    const pysim_level *outer = &s->level[i];
    for (int32_t inner = 0; inner < i; ++inner) {
        int all = outer->is.shared && !s->level[inner].is.shared;
        for (int32_t c = all ? 0 : core; c < (all ? s->cores : core + 1); ++c) yield_range(s, inner, c, address, outer->is.line_bytes, 1);
    }
}

/* The other cores' private levels write back their copies of this coherence unit, and drop them if `drop` is set. */
static void settle_others(pysim_simulation *s, int32_t core, uint64_t address, int drop) {
    uint64_t unit = address >> s->unit_shift << s->unit_shift;
    for (int32_t c = 0; c < s->cores; ++c)
        for (int32_t i = 0; c != core && i < s->private_levels; ++i) yield_range(s, i, c, unit, INT64_C(1) << s->unit_shift, drop);
}

static uint64_t load(pysim_simulation *s, int32_t i, int32_t core, uint64_t address, uint64_t owner, int train);
static void store(pysim_simulation *s, int32_t i, int32_t core, uint64_t address, int64_t bytes, uint64_t owner, int from);
static void fill(pysim_simulation *s, int32_t i, int32_t core, uint64_t line, uint64_t flags);

/* Inserts a line displaced from the inner level into an exclusive level. */
static void receive(pysim_simulation *s, int32_t i, int32_t core, uint64_t address, uint64_t word) {
    const pysim_level *l = &s->level[i];
    uint64_t line = line_of(l, address);
    pysim_set set = set_of(l, core, line);
    int64_t way = find(l, set, line);
    l->count[owner_of(word)].victims++;
    if (way < 0) {
        fill(s, i, core, line, word & (PYSIM_DIRTY | PYSIM_OWNER));
        return;
    }
    set.ways[way].word |= word & PYSIM_DIRTY; /* another core's copy is here already */
    use(s, l, set, way);
}

/* Moves a line that a fill displaced from level i outward. */
static void leave(pysim_simulation *s, int32_t i, int32_t core, uint64_t word) {
    const pysim_level *l = &s->level[i];
    int outward = i + 1 < s->levels && s->level[i + 1].is.inclusion == PYSIM_EXCLUSIVE;
    pysim_cache_counters *count = &l->count[owner_of(word)];
    count->evictions++;
    count->writebacks += (word & PYSIM_DIRTY) != 0;
    if (outward || word & PYSIM_DIRTY) count->bytes_written += l->is.line_bytes;
    if (outward) receive(s, i + 1, core, address_of(l, word), word);
    else if (word & PYSIM_DIRTY) store(s, i + 1, core, address_of(l, word), l->is.line_bytes, owner_of(word), VICTIM);
}

/* Inserts a line; flags are its owner, dirty and prefetched bits. */
static void fill(pysim_simulation *s, int32_t i, int32_t core, uint64_t line, uint64_t flags) {
    const pysim_level *l = &s->level[i];
    pysim_set set = set_of(l, core, line);
    int64_t way = choose(l, set);
    if (l->is.inclusion == PYSIM_INCLUSIVE && set.ways[way].word != 0) drop_inside(s, i, core, address_of(l, set.ways[way].word));
    uint64_t old = set.ways[way].word;
    put(s, l, set, way, line << 8 | flags | PYSIM_VALID);
    if (old != 0) leave(s, i, core, old);
}

static void ahead(pysim_simulation *s, int32_t i, uint64_t from, uint64_t line) {
    int32_t page = s->level[i].shift < PYSIM_PAGE_SHIFT ? PYSIM_PAGE_SHIFT - s->level[i].shift : 0;
    if (line >> page == from >> page && s->ahead < PYSIM_QUEUE) s->queue[s->ahead++] = (pysim_ahead){line, i};
}

static void train_stream(pysim_simulation *s, int32_t i, int32_t core, uint64_t line) {
    const pysim_level *l = &s->level[i];
    pysim_stream *streams = (pysim_stream *)(pysim_cache_of(l, core) + l->streams);
    uint64_t page = (line << l->shift >> PYSIM_PAGE_SHIFT) + 1;
    int32_t at = 0;
    while (at < PYSIM_STREAMS - 1 && streams[at].page != page) ++at;
    pysim_stream now = streams[at].page == page ? streams[at] : (pysim_stream){page, line, 0};
    int64_t direction = (line > now.last) - (line < now.last);
    if (direction != 0 && direction == now.direction)
        for (int64_t step = 1; step <= l->is.prefetch_degree; ++step) ahead(s, i, line, line + (uint64_t)(direction * step));
    memmove(streams + 1, streams, (size_t)at * sizeof *streams);
    streams[0] = (pysim_stream){page, line, direction != 0 ? direction : now.direction};
}

static void train(pysim_simulation *s, int32_t i, int32_t core, uint64_t line) {
    const pysim_level *l = &s->level[i];
    if (l->is.prefetch == PYSIM_PREFETCH_STREAM) train_stream(s, i, core, line);
    if (l->is.prefetch == PYSIM_PREFETCH_NEXT_LINE)
        for (int32_t step = 1; step <= l->is.prefetch_degree; ++step) ahead(s, i, line, line + (uint64_t)step);
}

/* A hit: counts the first use of a prefetched line and trains the prefetcher. */
static void hit(pysim_simulation *s, int32_t i, int32_t core, uint64_t *word, uint64_t owner, int trains) {
    if (!(*word & PYSIM_PREFETCHED)) return;
    *word &= ~PYSIM_PREFETCHED;
    s->level[i].count[owner].prefetch_hits++;
    if (trains) train(s, i, core, *word >> 8);
}

/* A read of one line by the level inside i. Returns PYSIM_DIRTY if an exclusive level handed over a dirty line, else 0. */
static uint64_t load(pysim_simulation *s, int32_t i, int32_t core, uint64_t address, uint64_t owner, int trains) {
    if (i == s->private_levels && i > 0) settle_others(s, core, address, 0);
    if (i == s->levels) return 0;
    const pysim_level *l = &s->level[i];
    pysim_cache_counters *count = &l->count[owner];
    uint64_t line = line_of(l, address);
    pysim_set set = set_of(l, core, line);
    int64_t way = find(l, set, line);
    int exclusive = l->is.inclusion == PYSIM_EXCLUSIVE;
    count->loads++;
    if (way >= 0) {
        hit(s, i, core, &set.ways[way].word, owner, trains);
        if (exclusive) return take(set, way) & PYSIM_DIRTY;
        use(s, l, set, way);
        return 0;
    }
    count->load_misses++;
    count->bytes_read += l->is.line_bytes;
    if (trains) train(s, i, core, line);
    uint64_t dirty = load(s, i + 1, core, line << l->shift, owner, trains);
    if (exclusive) return dirty;
    fill(s, i, core, line, dirty | owner << 3);
    return 0;
}

/* A store miss at a level that allocates: inserts the line. */
static void allocate(pysim_simulation *s, int32_t i, int32_t core, uint64_t line, int64_t bytes, uint64_t owner, int from) {
    const pysim_level *l = &s->level[i];
    uint64_t flags = owner << 3 | (l->is.write_back ? PYSIM_DIRTY : 0);
    if (from == CORE) train(s, i, core, line);
    if (from == VICTIM && bytes == l->is.line_bytes && !l->is.fetch_on_writeback) {
        const pysim_level *next = &s->level[i + 1]; /* an exclusive level's copy is stale now */
        if (i + 1 < s->levels && next->is.inclusion == PYSIM_EXCLUSIVE) {
            pysim_set set = set_of(next, core, line);
            int64_t way = find(next, set, line);
            if (way >= 0) take(set, way);
        }
    } else {
        l->count[owner].bytes_read += l->is.line_bytes;
        flags |= load(s, i + 1, core, line << l->shift, owner, from == CORE);
    }
    fill(s, i, core, line, flags);
}

static void store(pysim_simulation *s, int32_t i, int32_t core, uint64_t address, int64_t bytes, uint64_t owner, int from) {
    if (i == s->levels) return;
    const pysim_level *l = &s->level[i];
    pysim_cache_counters *count = &l->count[owner];
    uint64_t line = line_of(l, address);
    pysim_set set = set_of(l, core, line);
    int64_t way = find(l, set, line);
    int allocates = l->is.write_allocate && l->is.inclusion != PYSIM_EXCLUSIVE;
    count->stores++;
    if (way >= 0) {
        hit(s, i, core, &set.ways[way].word, owner, from == CORE);
        use(s, l, set, way);
        set.ways[way].word = (set.ways[way].word & ~PYSIM_OWNER) | owner << 3 | (l->is.write_back ? PYSIM_DIRTY : 0);
    } else {
        count->store_misses++;
        if (allocates) allocate(s, i, core, line, bytes, owner, from);
    }
    if (l->is.write_back && (way >= 0 || allocates)) return;
    count->bytes_written += bytes;
    store(s, i + 1, core, address, bytes, owner, THROUGH);
}

void pysim_touch(pysim_simulation *s, int32_t core, uint64_t address, int64_t bytes, int write, uint64_t owner) {
    if (write) {
        if (s->private_levels > 0) {
            const pysim_level *l = &s->level[0];
            pysim_set set = set_of(l, core, line_of(l, address));
            int64_t way = find(l, set, line_of(l, address));
            if (way < 0 || !(set.ways[way].word & PYSIM_DIRTY)) settle_others(s, core, address, 1);
        }
        store(s, 0, core, address, bytes, owner, CORE);
    } else {
        load(s, 0, core, address, owner, 1);
    }
    for (int32_t k = 0; k < s->ahead; ++k) {
        pysim_ahead next = s->queue[k];
        const pysim_level *l = &s->level[next.level];
        if (find(l, set_of(l, core, next.line), next.line) >= 0) continue;
        l->count[owner].prefetches++;
        l->count[owner].bytes_read += l->is.line_bytes;
        uint64_t dirty = load(s, next.level + 1, core, next.line << l->shift, owner, 0);
        fill(s, next.level, core, next.line, dirty | owner << 3 | PYSIM_PREFETCHED);
    }
    s->ahead = 0;
}

void pysim_clean_level(pysim_simulation *s, int32_t i) {
    pysim_level *l = &s->level[i];
    for (int32_t core = 0; core < l->instances; ++core) {
        const pysim_way *ways = (const pysim_way *)(pysim_cache_of(l, core) + l->ways);
        for (int64_t k = 0; k < l->is.sets * l->is.ways; ++k)
            if (ways[k].word & PYSIM_DIRTY) yield(s, i, core, address_of(l, ways[k].word), 0);
    }
}
