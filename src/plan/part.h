/*
 * part.h - stage 3: blocks to bytes. The only place that knows how (collective, count, element size, nblocks, chunk) map a plan's
 * blocks to byte ranges. Pure functions, no state.
 *
 * Narrow buffers (all of allreduce, broadcast, reduce, scan and exscan) hold one chunk that is cut into nblocks nearly equal
 * pieces, on 64-byte boundaries as long as that leaves no rank without work. Wide buffers (IN of reduce_scatter and scatter, OUT of
 * allgather and gather, both of alltoall; TMP of all these) hold nranks blocks of `count` elements; nblocks == nranks; a chunk is
 * the same range of every block. Single buffers (OUT of reduce_scatter and scatter, IN of allgather and gather) hold only the block
 * whose index is the owner's rank.
 *
 * Blocks may differ in size (struct abci_vector). A chunk is then the same range of every block as far as the block has it, and in
 * an area blocks lie as if all were as long as the longest: so every rank knows where a peer's block lies, whatever it knows of its
 * size.
 */
#ifndef ABCI_PART_H
#define ABCI_PART_H

#include "plan/plan.h"

#define ABCI_PACKED 512 /* wide areas up to so many bytes have no gaps between blocks */

/* Blocks of different sizes: counts and offsets of IN and OUT by block, in elements. A single buffer's block is at 0. */
struct abci_vector {
    uint64_t *count[2], *offset[2]; /* [nranks] */
};

/* One instance of a plan on concrete sizes; elements. */
struct abci_shape {
    abc_collective collective; /* one that has plans */
    uint32_t nranks;
    uint32_t nblocks;
    uint32_t element;                 /* bytes */
    uint64_t count;                   /* of the whole call; of its largest block when they differ */
    uint64_t first;                   /* first element of the chunk */
    uint64_t length;                  /* elements of the chunk */
    const struct abci_vector *vector; /* NULL: all blocks have `count` elements */
};

/* Where a block lies: in the user's buffer, and in an area that holds just this chunk. Bytes. */
struct abci_range {
    uint64_t user;
    uint64_t area;
    uint64_t bytes;
};

enum abci_width { ABCI_NARROW, ABCI_WIDE, ABCI_SINGLE };
/* Has this rank such a buffer (not a temporary)? Some only a root has, and rank 0 gets no exscan. */
bool abci_part_exists(abc_collective coll, int buffer, int rank, int root);
extern const uint8_t abci_part_widths[ABC_COLLECTIVE_COUNT][4]; /* of IN, OUT, temporaries */
static inline enum abci_width abci_part_width(abc_collective coll, int buffer)
{
    return (enum abci_width)abci_part_widths[coll][buffer < ABCI_TMP ? buffer : ABCI_TMP];
}
/* Do the collective's blocks belong to ranks? Then nblocks == nranks, and `count` is that of a block. */
static inline bool abci_part_by_rank(abc_collective coll)
{
    return abci_part_widths[coll][ABCI_TMP] == ABCI_WIDE;
}
struct abci_range abci_part_block(const struct abci_shape *shape, int buffer, int block);
/* True when `count` blocks from `block` on lie one after another in both layouts, so that they may be handled as one range. */
bool abci_part_joined(const struct abci_shape *shape, int buffer);
/* End of the last block in an area, and the bytes of an area that holds them (64-byte multiple). */
uint64_t abci_part_end(const struct abci_shape *shape, int buffer);
uint64_t abci_part_area(const struct abci_shape *shape, int buffer);
/* Number of chunks, and the n-th chunk's range, for chunks of at most `chunk_bytes` of a narrow buffer or of all blocks together.
 */
uint64_t abci_part_chunks(abc_collective coll, int nranks, uint32_t element, uint64_t count, uint64_t chunk_bytes);
void abci_part_chunk(struct abci_shape *shape, uint64_t chunk_bytes, uint64_t n);

/* The same for many chunks of one call: what does not depend on n is worked out once, which leaves no division for each of them. */
struct abci_cut {
    uint64_t unit;        /* elements that are never cut apart */
    uint64_t least, more; /* units of a chunk; the first `more` chunks have one more */
};
struct abci_cut abci_part_cut(const struct abci_shape *shape, uint64_t chunk_bytes);
void abci_part_cut_chunk(struct abci_shape *shape, const struct abci_cut *cut, uint64_t n);

#endif
