/* SPDX-License-Identifier: Apache-2.0
 * The decomposition of a product over thread blocks (data parallel, split-K, stream-K), its rasterisation order, and the fix-up that adds partial
 * sums.
 *
 * C has tiles_m x tiles_n tiles, k has `steps` k-iterations of block_k. The rasterisation numbers the tiles in bands `group` tiles wide, so that
 * concurrent blocks share rows of A and columns of B in L2.
 *   data parallel  item = tile; all k-iterations
 *   split-K        item = part * tiles + tile; part s of S takes k-iterations [s*steps/S, (s+1)*steps/S)
 *   stream-K       block g of G takes k-iterations [g*T/G, (g+1)*T/G) of all T = tiles*steps in rasterisation order; its range may begin and end inside
 *                  a tile
 * Fix-up: each block that computed a part of a tile stores its accumulators in the workspace and increments the tile's flag. The last block to
 * arrive adds all parts in the order of k, so the bits do not depend on which block that is.
 *
 * Worked number: 3 x 5 tiles, along m, group 2: (0,0) (0,1) (1,0) (1,1) (2,0) (2,1) (0,2) ... (2,3) (0,4) (1,4) (2,4). */
#ifndef PYSIM_CUDA_DECOMPOSITION_CUH
#define PYSIM_CUDA_DECOMPOSITION_CUH
#include "core/divisor.h"
#include "core/launch.h"
#include "core/problem.h"

namespace pysim {

__host__ __device__ inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

/* a / b, both non-negative. The shortcuts matter: a division is some 20 dependent instructions between two tiles. */
__device__ inline int quotient(int a, int b) { return a < b ? 0 : b == 1 ? a : (int)((unsigned)a / (unsigned)b); }

/* Cluster split-K: the split-K parts of a tile run in one cluster, which reduces them without workspace. Each part is computed by one block, or by a cluster
 * of the row's own shape. All GPUs with clusters run clusters of up to 8 blocks, and Hopper those of 16 if the kernel allows it (core/launch.h); large ones
 * leave multiprocessors idle (machine files say how many clusters run at once). */
enum { MAX_CLUSTER_BLOCKS = 16 };
__host__ __device__ inline bool is_cluster_split_k(const Problem &p) { return p.kind == PYSIM_SPLIT_K && !p.partials; }

/* The divisions by which Grid::place finds a tile: each band, all but the last and the last one. */
struct Raster {
    Divisor tiles, band, width, last_width; /* of the grid; of a band; across a band, across the last */
};

/* total * part / parts, of `part` up to `parts`. */
__device__ inline int64_t share(int64_t total, int part, int parts) {
    if (part == 0 || part == parts) return part ? total : 0;
    return (int64_t)((uint64_t)total * part / (unsigned)parts);
}

struct Tile {
    int i, j;              /* tile row and column */
    int begin, end;        /* k-iterations */
    int index;             /* of the tile's flag */
    int part, parts, slot; /* this is part `part` of `parts` of the tile; part 0 is stored in `slot` (stream-K: see Work::slot_of) */
};

struct Grid {
    int tiles_m, tiles_n, steps;
    __host__ __device__ Grid(const Problem &p, int block_m, int block_n, int block_k)
        : tiles_m(ceil_div(p.m, block_m)), tiles_n(ceil_div(p.n, block_n)), steps(ceil_div(p.k, block_k)) {}
    __host__ __device__ int tiles() const { return tiles_m * tiles_n; }
    /* Work items: blocks of a launch that is not persistent. */
    __host__ __device__ int items(const Problem &p) const {
        return p.kind == PYSIM_STREAM_K ? p.splits : p.kind == PYSIM_SPLIT_K ? tiles() * p.splits : tiles();
    }
    __host__ __device__ int64_t slots(const Problem &p) const {
        return p.kind == PYSIM_STREAM_K ? 2 * (int64_t)p.splits : p.kind == PYSIM_SPLIT_K ? (int64_t)tiles() * p.splits : 0;
    }
    __host__ __device__ int fast(const Problem &p) const { return p.along_n ? tiles_n : tiles_m; }
    __host__ __device__ int slow(const Problem &p) const { return p.along_n ? tiles_m : tiles_n; }
    __device__ void place(const Problem &p, int index, int &i, int &j) const {
        const int size = fast(p) * p.group, band = quotient(index, size), width = min(p.group, slow(p) - band * p.group);
        place(p, index - band * size, band, width, quotient(index - band * size, width), i, j);
    }
    __device__ void place(const Problem &p, const Raster &raster, int index, int &i, int &j) const {
        int within;
        const int band = raster.band.of(index, within), rest = slow(p) - band * p.group;
        const Divisor &width = rest < p.group ? raster.last_width : raster.width;
        place(p, within, band, (int)width.divisor, width.of(within), i, j);
    }
    Raster raster(const Problem &p) const {
        const int slow = this->slow(p), width = slow < p.group ? slow : p.group, last = slow % width;
        return {Divisor((unsigned)tiles()), Divisor((unsigned)(fast(p) * width)), Divisor((unsigned)width),
                Divisor((unsigned)(last ? last : width))};
    }

private:
    /* Row and column of tile number `within` of a band `width` tiles wide; `down` = within / width. */
    __device__ static void place(const Problem &p, int within, int band, int width, int down, int &i, int &j) {
        const int across = band * p.group + within - down * width;
        i = p.along_n ? across : down;
        j = p.along_n ? down : across;
    }
};

/* Iterates over the tiles of block `block` of `blocks`: `for (Work w(...); w.next(t);)`. A block has one tile if there are as many blocks as items, else
 * (persistent kernels) several. Every thread of a block sees the same tiles. */
class Work {
protected:
    const Problem &p;
    const Grid grid;

    /* Sets the next tile of stream-K, but not its row and column. */
    __device__ bool next_range(Tile &t) {
        while (at >= stop) { /* with fewer blocks than ranges, a block takes several ranges */
            item += blocks;
            if (item >= p.splits) return false;
            at = first_step(item), stop = first_step(item + 1);
        }
        t.index = (int)((uint64_t)at / (unsigned)grid.steps);
        const int64_t origin = (int64_t)t.index * grid.steps;
        const int first = block_of(origin), last = block_of(origin + grid.steps - 1);
        t.begin = (int)(at - origin);
        t.end = (int)min((int64_t)grid.steps, stop - origin);
        t.part = item - first, t.parts = last - first + 1;
        t.slot = first;
        at = origin + t.end;
        return true;
    }
    /* The same for the other decompositions. part_of(item, tile) divides an item by the number of tiles: returns its part, and sets its tile. */
    template <class PartOf> __device__ bool next_item(Tile &t, PartOf part_of) {
        if (item >= grid.items(p)) return false;
        t.parts = p.kind == PYSIM_SPLIT_K ? p.splits : 1;
        t.part = part_of(item, t.index);
        set_part(t);
        item += blocks;
        return true;
    }
    /* Sets the k-iterations and the slot of part t.part of t.parts. */
    __device__ void set_part(Tile &t) const {
        t.begin = (int)share(grid.steps, t.part, t.parts), t.end = (int)share(grid.steps, t.part + 1, t.parts);
        t.slot = t.index * t.parts;
    }

private:
    const int blocks;
    int item;
    int64_t at, stop; /* stream-K: k-iterations, counted over all tiles */
    __device__ int64_t first_step(int g) const { return share((int64_t)grid.tiles() * grid.steps, g, p.splits); }
    __device__ int block_of(int64_t step) const { /* the last g with first_step(g) <= step */
        return (int)(((uint64_t)(step + 1) * p.splits - 1) / ((uint64_t)grid.tiles() * grid.steps));
    }

public:
    __device__ Work(const Problem &problem, const Grid &tiles, int block, int count)
        : p(problem), grid(tiles), blocks(count), item(block), at(0), stop(0) {
        if (p.kind == PYSIM_STREAM_K && block < p.splits) at = first_step(block), stop = first_step(block + 1);
    }
    __device__ bool next(Tile &t) {
        if (p.kind == PYSIM_STREAM_K ? !next_range(t) : !next_item(t, [&](int n, int &rest) {
                const int tiles = grid.tiles(), part = quotient(n, tiles);
                rest = n - part * tiles;
                return part;
            }))
            return false;
        grid.place(p, t.index, t.i, t.j);
        return true;
    }
    /* The slot of part `part` of a tile. A stream-K block stores at most two parts: of its first tile and of its last. */
    __device__ int64_t slot_of(const Tile &t, int part) const {
        if (p.kind != PYSIM_STREAM_K) return t.slot + part;
        const int g = t.slot + part;
        return 2 * (int64_t)g + ((int64_t)grid.tiles() * g < (int64_t)t.index * p.splits); /* first_step(g) is before the tile's first */
    }
};

/* The grid of a launch of clusters of `blocks` blocks, of which up to `resident` run at once; `cluster_split`: those of a tile's parts form one cluster along
 * z. If each block has one tile, x numbers the tiles along the fast dimension, y those along the slow one and z the parts: no division then precedes a
 * block's first load. All run at once, but hardware distributes consecutive blocks over the GPCs, so the order decides which of them request the same bytes. */
inline dim3 place_blocks(Problem &p, const Grid &grid, int resident, bool cluster_split, int blocks = 1) {
    constexpr int MAX_Y = 65535;
    const int items = grid.items(p), parts = p.kind == PYSIM_SPLIT_K ? p.splits : 1;
    const int fast = grid.fast(p), slow = grid.slow(p);
    p.placed = p.kind != PYSIM_STREAM_K && slow <= MAX_Y && (cluster_split || items <= resident);
    if (p.placed) return dim3((unsigned)(fast * blocks), (unsigned)slow, (unsigned)parts);
    if (cluster_split) return dim3((unsigned)(grid.tiles() * blocks), 1, (unsigned)parts);
    return dim3((unsigned)((items < resident ? items : resident) * blocks));
}

/* The tiles of a block of such a launch: block or cluster `x` of `count` along x. */
class PlacedWork : public Work {
    const int x;
    bool first = true;

protected:
    /* The block's only tile. */
    __device__ bool next_placed(Tile &t) {
        if (!first) return false;
        first = false;
        t.i = p.along_n ? (int)blockIdx.y : x, t.j = p.along_n ? x : (int)blockIdx.y, t.index = t.i * grid.tiles_n + t.j;
        t.part = (int)blockIdx.z, t.parts = (int)gridDim.z;
        set_part(t);
        return true;
    }

public:
    __device__ PlacedWork(const Problem &p, const Grid &grid, int x, int count)
        : Work(p, grid, x + (int)blockIdx.z * count, count * (int)gridDim.z), x(x) {}
    __device__ bool next(Tile &t) { return p.placed ? next_placed(t) : Work::next(t); }
};

/* The same, by the divisors of a raster instead of divisions. */
class RasterWork : public PlacedWork {
    const Raster &raster;

public:
    __device__ RasterWork(const Problem &p, const Grid &grid, const Raster &raster, int x, int count)
        : PlacedWork(p, grid, x, count), raster(raster) {}
    __device__ bool next(Tile &t) {
        if (p.placed) return next_placed(t);
        if (p.kind != PYSIM_STREAM_K ? !next_item(t, [&](int n, int &rest) { return raster.tiles.of(n, rest); }) : !next_range(t))
            return false;
        grid.place(p, raster, t.index, t.i, t.j);
        return true;
    }
};

/* The fix-up of a tile: returns true in the block that arrives last, whose `acc` then holds the sum of all parts; a tile with one part returns true at
 * once. All `threads` threads that hold the tile call it with their index `thread`; sync() is their barrier, `shared` one int of shared memory. */
template <class Acc, int COUNT, class Sync>
__device__ bool reduce_parts(const Problem &p, const Work &work, const Tile &t, Acc (&acc)[COUNT], int thread, int threads, int *shared,
                             Sync sync) {
    if (t.parts == 1) return true;
    const int64_t size = (int64_t)COUNT * threads;
    Acc *own = (Acc *)p.partials + work.slot_of(t, t.part) * size + thread;
#pragma unroll
    for (int e = 0; e < COUNT; e++) own[e * threads] = acc[e];
    __threadfence();
    sync();
    wait_for_previous(); /* it clears the flags */
    if (thread == 0) *shared = atomicAdd(p.flags + t.index, 1u) == (unsigned)t.parts - 1;
    sync();
    const bool last = *shared;
    sync(); /* *shared may be written again */
    if (!last) return false;
    __threadfence();
    for (int part = 0; part < t.parts; part++) {
        const Acc *from = (const Acc *)p.partials + work.slot_of(t, part) * size + thread;
#pragma unroll
        for (int e = 0; e < COUNT; e++) {
            const Acc value = __ldcg(from + e * threads);
            acc[e] = part == 0 ? value : acc[e] + value;
            if (e % 16 == 15) asm volatile("" ::: "memory"); /* limits the loads in flight, and so registers */
        }
    }
    return true;
}
}
#endif
