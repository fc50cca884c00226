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

enum { WORD = 8, CHAINS = 4, SAMPLES = 24 };
static const uint64_t PRIME = 0x9E3779B97F4A7C15u; // odd, its bits without order: 2^64 over the golden ratio

static uint64_t mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * PRIME;
    return h ^ (h >> 29);
}

static uint64_t word_at(const char *memory, int64_t bytes, int64_t offset) {
    uint64_t word = 0;
    const int64_t left = bytes - offset;
    memcpy(&word, memory + offset, (size_t)(left < WORD ? left : WORD));
    return word;
}

static uint64_t fingerprint(const char *memory, int64_t bytes, int64_t whole_bytes) {
    uint64_t a = 1, b = 2, c = 3, d = 4;
    int64_t at = 0;
    if (bytes <= whole_bytes) {
        for (; at + CHAINS * WORD <= bytes; at += CHAINS * WORD) {
            a = mix(a, word_at(memory, bytes, at));
            b = mix(b, word_at(memory, bytes, at + WORD));
            c = mix(c, word_at(memory, bytes, at + 2 * WORD));
            d = mix(d, word_at(memory, bytes, at + 3 * WORD));
        }
    }
    uint64_t chain[CHAINS] = {a, b, c, d};
    const int64_t words = bytes <= whole_bytes ? (bytes - at + WORD - 1) / WORD : SAMPLES;
    for (int64_t i = 0; i < words; i++) {
        const int64_t offset = bytes <= whole_bytes ? at + i * WORD : (int64_t)((double)(bytes - WORD) * (double)i / (SAMPLES - 1));
        chain[i % CHAINS] = mix(chain[i % CHAINS], word_at(memory, bytes, offset));
    }
    uint64_t h = (uint64_t)bytes;
    for (int i = 0; i < CHAINS; i++) h = mix(h, chain[i]);
    return h;
}

pysim_status pysim_fingerprints(int64_t count, const void *const *memory, const int64_t *bytes, int64_t whole_bytes, uint64_t *fingerprints,
                                int64_t *changed, int64_t *changes) {
    if (count < 0 || whole_bytes < WORD || (count && (!memory || !bytes || !fingerprints || !changed)) || !changes)
        return pysim_fail(PYSIM_BAD_ARGUMENT, "fingerprints need blocks, their sizes and memory for results");
    *changes = 0;
    for (int64_t i = 0; i < count; i++) {
        if (bytes[i] < 0 || (bytes[i] && !memory[i])) return pysim_fail(PYSIM_BAD_ARGUMENT, "block %lld has no memory", (long long)i);
        const uint64_t now = fingerprint(memory[i], bytes[i], whole_bytes);
        if (now != fingerprints[i]) changed[(*changes)++] = i;
        fingerprints[i] = now;
    }
    return PYSIM_OK;
}
