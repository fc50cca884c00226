/* SPDX-License-Identifier: Apache-2.0
 * The loop over accesses, optimised for the most frequent case: a hit in L1, often in the same line as the access before. Everything else goes to
 * simulate_levels.c, except misses of the default kind of hierarchy, whose rules are short enough to be repeated here (`request`).
 *
 * On a packed-tile trace with 8 % misses in L1 (lab/benchmarks/cache_speed.py) a hit takes about 1.5 ns on a Zen 4 core, a miss that hits L2 20 ns.
 * What paid: no work for a repeated line; remembering each line's last way instead of searching; timestamps instead of a sorted set, so that
 * the remembered way stays valid; prefetching the next level's set before searching this one. */
#include "simulate_levels.h"

enum { PLACE_BITS = 10 };

/* `place` remembers the L1 way in which a line was last seen; the way itself says whether it still holds the line. Hits per tag are
 * counted in four banks in rotation, because an addition waits for the one before it to the same counter. */
typedef struct {
    uint32_t place[1 << PLACE_BITS];
    int64_t hits[4][2 * PYSIM_CACHE_SPLITS];
} memory;

static inline uint64_t owner_of_tag(uint64_t tag) { return (tag & 7) | tag >> 4 << 3; }

/* The line's set in the first cache of a level. */
static inline pysim_way *set_at(const pysim_level *l, uint64_t line) {
    return (pysim_way *)(l->caches + l->ways) + pysim_set_index(l, line) * (uint64_t)l->is.ways;
}

/* Prefetches the set that will be searched next into this machine's cache. */
static inline void prepare(const pysim_level *l, uint64_t address) {
    const pysim_way *set = set_at(l, address >> l->shift);
    for (int64_t way = 0; way < l->is.ways && way < 32; way += 4) __builtin_prefetch(set + way);
}

static int is_default(const pysim_simulation *s) {
    int same = s->cores == 1;
    for (int32_t i = 0; i < s->levels; ++i) {
        const pysim_cache_level *l = &s->level[i].is;
        same = same && l->policy == PYSIM_LRU && l->inclusion == PYSIM_NON_INCLUSIVE && l->write_back && l->write_allocate &&
               l->fetch_on_writeback && l->prefetch == PYSIM_PREFETCH_NONE;
    }
    return same;
}

static pysim_way *miss(pysim_simulation *s, int32_t i, pysim_way *ways, uint64_t line, uint64_t write, uint64_t owner);

/* One request in a hierarchy of the default kind. */
static void request(pysim_simulation *s, int32_t i, uint64_t address, uint64_t write, uint64_t owner) {
    const pysim_level *l = &s->level[i];
    const uint64_t line = address >> l->shift;
    pysim_way *ways = set_at(l, line);
    int64_t way = pysim_find(ways, l->is.ways, line);
    if (way < 0) {
        miss(s, i, ways, line, write, owner);
        return;
    }
    *(write ? &l->count[owner].stores : &l->count[owner].loads) += 1;
    if (write) ways[way].word = (ways[way].word & ~PYSIM_OWNER) | PYSIM_DIRTY | owner << 3;
    ways[way].time = ++*s->clock;
}

/* Handles a miss; returns the way that holds the line now. */
static pysim_way *miss(pysim_simulation *s, int32_t i, pysim_way *ways, uint64_t line, uint64_t write, uint64_t owner) {
    const pysim_level *l = &s->level[i];
    const int last = i + 1 == s->levels;
    pysim_cache_counters *count = &l->count[owner];
    if (!last) prepare(l + 1, line << l->shift);
    *(write ? &count->stores : &count->loads) += 1;
    *(write ? &count->store_misses : &count->load_misses) += 1;
    count->bytes_read += l->is.line_bytes;
    pysim_way *way = &ways[pysim_earliest(ways, l->is.ways)]; /* outer levels do not change this set */
    if (!last) request(s, i + 1, line << l->shift, 0, owner);
    const uint64_t old = way->word, old_owner = (old & PYSIM_OWNER) >> 3;
    *way = (pysim_way){line << 8 | owner << 3 | (write ? PYSIM_DIRTY : 0) | PYSIM_VALID, ++*s->clock};
    if (old == 0) return way;
    count = &l->count[old_owner];
    count->evictions++;
    if (!(old & PYSIM_DIRTY)) return way;
    count->writebacks++;
    count->bytes_written += l->is.line_bytes;
    if (!last) request(s, i + 1, old >> 8 << l->shift, 1, old_owner);
    return way;
}

/* The L1 way that holds the line, or NULL. */
static inline pysim_way *seek(const pysim_level *l1, pysim_way *all, uint32_t *place, uint64_t line) {
    pysim_way *at = &all[*place];
    if ((at->word & (PYSIM_LINE | PYSIM_VALID)) == (line << 8 | PYSIM_VALID)) return at;
    uint64_t set = pysim_set_index(l1, line) * (uint64_t)l1->is.ways;
    int64_t way = pysim_find(all + set, l1->is.ways, line);
    if (way < 0) return NULL;
    *place = (uint32_t)(set + (uint64_t)way);
    return &all[*place];
}

/* Serves accesses k.. of one core as long as each lies within one line and hits L1, changing only a timestamp, a tree or a dirty bit
 * (or, if `plain`, misses L1). Returns the index of the first access it did not serve. plain and tagged are constants: one compiled copy
 * per combination. */
static inline int64_t serve(const pysim_chunk *c, memory *m, pysim_simulation *s, int32_t core, int64_t k, int64_t end, int plain,
                            int tagged) {
    const pysim_level *l1 = &s->level[0];
    const int64_t *addresses = c->addresses;
    const int32_t *sizes = c->sizes;
    const uint8_t *is_write = c->is_write, *tags = c->tags;
    const int32_t shift = l1->shift, policy = plain ? PYSIM_LRU : l1->is.policy;
    /* A store can be served here only if it just marks its line dirty: not in a write-through L1, nor where other cores may hold copies. */
    const uint64_t quiet = plain ? PYSIM_VALID : !l1->is.write_back ? 0 : s->private_levels > 0 ? PYSIM_DIRTY : PYSIM_VALID;
    pysim_way *all = (pysim_way *)(pysim_cache_of(l1, core) + l1->ways), *at = NULL;
    uint64_t *trees = (uint64_t *)(pysim_cache_of(l1, core) + l1->trees);
    uint64_t clock = *s->clock, last = UINT64_MAX, stores = 0, missed = 0;
    const int64_t first = k;
    for (; k < end; ++k) {
        const uint64_t address = (uint64_t)addresses[k], line = address >> shift, write = is_write[k];
        const uint64_t owner = tagged ? owner_of_tag(tags[k]) : 0;
        if ((address + (uint64_t)(int64_t)sizes[k] - 1) >> shift != line) break;
        if (line != last) { /* otherwise nothing else in its set was used in between */
            uint32_t *place = &m->place[line * UINT64_C(0x9E3779B97F4A7C15) >> (64 - PLACE_BITS)];
            at = seek(l1, all, place, line);
            if (plain && at == NULL) {
                *s->clock = clock;
                at = miss(s, 0, set_at(l1, line), line, write, owner);
                clock = *s->clock;
                *place = (uint32_t)(at - all);
                last = line;
                missed++;
                continue;
            }
            if (at == NULL || (!plain && at->word & PYSIM_PREFETCHED)) break;
            last = line;
            if (policy == PYSIM_LRU) at->time = ++clock;
            if (policy == PYSIM_PLRU) {
                uint64_t *tree = &trees[(at - all) / l1->is.ways];
                *tree = pysim_tree_use(*tree, l1->is.ways, (at - all) % l1->is.ways);
            }
        }
        if (write) {
            if (!(at->word & quiet)) break;
            at->word = (at->word & ~PYSIM_OWNER) | PYSIM_DIRTY | owner << 3;
        }
        stores += write;
        if (tagged) m->hits[k % 4][2 * owner + write]++;
    }
    *s->clock = clock;
    if (!tagged) {
        m->hits[0][0] += k - first - (int64_t)(stores + missed);
        m->hits[0][1] += (int64_t)stores;
    }
    return k;
}

/* One access by the general rules, line by line. */
static void touch_lines(pysim_simulation *s, int plain, int32_t core, uint64_t address, int64_t bytes, int write, uint64_t owner) {
    const int32_t shift = s->level[0].shift;
    uint64_t end = address + (uint64_t)bytes;
    while (address < end) {
        uint64_t next = ((address >> shift) + 1) << shift;
        if (next > end) next = end;
        if (plain) request(s, 0, address, (uint64_t)write, owner);
        else pysim_touch(s, core, address, (int64_t)(next - address), write, owner);
        address = next;
    }
}

/* Accesses k..end-1, all by one core. */
static void run_core(const pysim_chunk *c, memory *m, pysim_simulation *s, int plain, int32_t core, int64_t k, int64_t end) {
    const int tagged = c->tags != NULL;
    while (k < end) {
        if (plain) k = tagged ? serve(c, m, s, core, k, end, 1, 1) : serve(c, m, s, core, k, end, 1, 0);
        else k = tagged ? serve(c, m, s, core, k, end, 0, 1) : serve(c, m, s, core, k, end, 0, 0);
        if (k == end) return;
        touch_lines(s, plain, core, (uint64_t)c->addresses[k], c->sizes[k], c->is_write[k], tagged ? owner_of_tag(c->tags[k]) : 0);
        ++k;
    }
}

void pysim_run_chunk(pysim_simulation *s, const pysim_chunk *c) {
    memory m = {{0}, {{0}}};
    const int plain = is_default(s);
    for (int64_t k = 0, end; k < c->n; k = end) {
        int32_t core = c->cores != NULL ? c->cores[k] : 0;
        end = c->cores != NULL ? k + 1 : c->n;
        while (end < c->n && c->cores[end] == core) ++end;
        run_core(c, &m, s, plain, core, k, end);
    }
    for (int32_t owner = 0; owner < PYSIM_CACHE_SPLITS; ++owner)
        for (int32_t bank = 0; bank < 4; ++bank) {
            s->level[0].count[owner].loads += m.hits[bank][2 * owner];
            s->level[0].count[owner].stores += m.hits[bank][2 * owner + 1];
        }
}
