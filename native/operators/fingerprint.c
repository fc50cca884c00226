// SPDX-License-Identifier: Apache-2.0
// Fingerprints of memory, which tell that somebody wrote to it: all words of a small block, evenly spaced ones of a larger block, in four
// chains, so that the multiplications of one do not wait for those of another.
//
//     h = (h ^ word) K     of each chain, combined in order at the end
//
// Each step is a bijection of h and of the word, so a block whose words are all read and of which one changed has another fingerprint.
#include <stdint.h>
#include <string.h>

#include "pysim.h"
#include "abi/status.h"

enum { WORD = 8, CHAINS = 4, SAMPLES = 24 /* a multiple of CHAINS */, LINE = 64, AHEAD = 24 /* single words */ };
static const uint64_t PRIME = 0x9E3779B97F4A7C15u; // odd, its bits without order: 2^64 over the golden ratio

static uint64_t mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * PRIME;
    return h ^ (h >> 29);
}

static uint64_t word_at(const char *memory) {
    uint64_t word;
    memcpy(&word, memory, WORD);
    return word;
}

static int64_t sample(int64_t bytes, int64_t i) { return (int64_t)((double)(bytes - WORD) * ((double)i / (SAMPLES - 1))); }

// Prefetches what `fingerprint` reads: most of it comes from memory, since a network has gone over its weights.
static void fetch(const char *memory, int64_t bytes, int64_t whole_bytes) {
    if (bytes > whole_bytes)
        for (int64_t i = 0; i < SAMPLES; i++) __builtin_prefetch(memory + sample(bytes, i));
    else
        for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(memory + at);
}

static uint64_t fingerprint(const char *memory, int64_t bytes, int64_t whole_bytes) {
    uint64_t a = 1, b = 2, c = 3, d = 4, rest = 0, h = (uint64_t)bytes;
    int64_t at = 0;
    if (bytes > whole_bytes)
        for (int64_t i = 0; i < SAMPLES; i += CHAINS) {
            a = mix(a, word_at(memory + sample(bytes, i)));
            b = mix(b, word_at(memory + sample(bytes, i + 1)));
            c = mix(c, word_at(memory + sample(bytes, i + 2)));
            d = mix(d, word_at(memory + sample(bytes, i + 3)));
        }
    else {
        for (; at + CHAINS * WORD <= bytes; at += CHAINS * WORD) {
            a = mix(a, word_at(memory + at));
            b = mix(b, word_at(memory + at + WORD));
            c = mix(c, word_at(memory + at + 2 * WORD));
            d = mix(d, word_at(memory + at + 3 * WORD));
        }
        for (; at + WORD <= bytes; at += WORD) a = mix(a, word_at(memory + at));
        for (int64_t i = 0; at < bytes; at++, i++) rest |= (uint64_t)(unsigned char)memory[at] << 8 * i;
    }
    const uint64_t chains[] = {a, b, c, d, rest};
    for (int i = 0; i <= CHAINS; i++) h = mix(h, chains[i]);
    return h;
}

pysim_status pysim_fingerprints(int64_t count, const void *const *memory, const int64_t *bytes, int64_t whole_bytes, uint64_t *fingerprints,
                                int64_t *changed, int64_t *changes) {
    if (count < 0 || whole_bytes < WORD || (count && (!memory || !bytes || !fingerprints || !changed)) || !changes)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "fingerprints need blocks, their sizes and memory for results");
    *changes = 0;
    for (int64_t i = 0; i < count; i++) {
        if (bytes[i] < 0 || (bytes[i] && !memory[i])) return pysim_fail(PYSIM_BAD_ARGUMENT, "block %lld has no memory", (long long)i);
        if (i + 1 < count && bytes[i + 1] > 0) fetch(memory[i + 1], bytes[i + 1], whole_bytes);
        if (bytes[i] <= WORD && i + AHEAD < count) __builtin_prefetch(memory[i + AHEAD]);
        const uint64_t now = fingerprint(memory[i], bytes[i], whole_bytes);
        if (now != fingerprints[i]) changed[(*changes)++] = i;
        fingerprints[i] = now;
    }
    return PYSIM_OK;
}
