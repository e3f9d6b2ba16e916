/*
 * part.c - stage 3: blocks to bytes. Below it nothing knows ranks' blocks, above it nothing knows bytes. Pure functions on values:
 * any thread, no memory, a handful of divisions each.
 */
#include "plan/part.h"

#include "base/base.h"

/* Start of piece i when n units are dealt to `pieces` owners; the first n % pieces owners get one more. Cannot overflow. */
static uint64_t deal(uint64_t n, uint64_t pieces, uint64_t i)
{
    uint64_t more = n % pieces;
    return i * (n / pieces) + (i < more ? i : more);
}

static uint64_t line_elements(uint32_t element)
{
    return element > 0 && element < ABCI_LINE ? ABCI_LINE / element : 1;
}

/* Whole lines that hold n bytes, in bytes. */
static uint64_t round_line(uint64_t n)
{
    return (n + (ABCI_LINE - 1)) / ABCI_LINE * ABCI_LINE;
}

#define NARROW                                                                                                                     \
    {                                                                                                                              \
        ABCI_NARROW, ABCI_NARROW, ABCI_NARROW                                                                                      \
    }

const uint8_t abci_part_widths[ABC_COLLECTIVE_COUNT][4] = {
    [ABC_ALLREDUCE] = NARROW,
    [ABC_REDUCE_SCATTER] = {ABCI_WIDE, ABCI_SINGLE, ABCI_WIDE},
    [ABC_ALLGATHER] = {ABCI_SINGLE, ABCI_WIDE, ABCI_WIDE},
    [ABC_BROADCAST] = NARROW,
    [ABC_BARRIER] = NARROW,
    [ABC_REDUCE] = NARROW,
    [ABC_GATHER] = {ABCI_SINGLE, ABCI_WIDE, ABCI_WIDE},
    [ABC_SCATTER] = {ABCI_WIDE, ABCI_SINGLE, ABCI_WIDE},
    [ABC_ALLTOALL] = {ABCI_WIDE, ABCI_WIDE, ABCI_WIDE},
    [ABC_SCAN] = NARROW,
    [ABC_EXSCAN] = NARROW,
    [ABC_GATHERV] = {ABCI_SINGLE, ABCI_WIDE, ABCI_WIDE},
    [ABC_SCATTERV] = {ABCI_WIDE, ABCI_SINGLE, ABCI_WIDE},
    [ABC_ALLGATHERV] = {ABCI_SINGLE, ABCI_WIDE, ABCI_WIDE},
    [ABC_REDUCE_SCATTERV] = {ABCI_WIDE, ABCI_SINGLE, ABCI_WIDE},
    [ABC_ALLTOALLV] = {ABCI_WIDE, ABCI_WIDE, ABCI_WIDE},
};

bool abci_part_exists(abc_collective coll, int buffer, int rank, int root)
{
    if (coll == ABC_BARRIER || (coll == ABC_EXSCAN && buffer == ABCI_OUT && rank == 0))
        return false;
    return rank == root || !abci_is(buffer == ABCI_IN ? ABCI_IN_AT_ROOT : ABCI_OUT_AT_ROOT, coll);
}

/* Distance of the blocks of a wide area: whole lines, but nothing between blocks that are small enough to travel in a header. */
static uint64_t stride(const struct abci_shape *shape)
{
    uint64_t n = shape->length * shape->element;
    return n <= ABCI_PACKED / shape->nranks ? n : round_line(n);
}

/* Element of the chunk at which narrow block `block` begins. Lines are dealt while every owner gets one, else elements. */
static uint64_t narrow_start(const struct abci_shape *shape, uint64_t block)
{
    uint64_t per_line = line_elements(shape->element);
    uint64_t lines = shape->length / per_line + (shape->length % per_line != 0);
    if (lines < shape->nblocks)
        return deal(shape->length, shape->nblocks, block);
    uint64_t start = deal(lines, shape->nblocks, block) * per_line;
    return start < shape->length ? start : shape->length;
}

/* A block that has a size of its own. Temporaries are cut as the buffer that holds all blocks. */
static struct abci_range vector_block(const struct abci_shape *shape, int buffer, uint64_t b)
{
    const struct abci_vector *v = shape->vector;
    bool single = abci_part_width(shape->collective, buffer) == ABCI_SINGLE;
    int like = buffer < ABCI_TMP ? buffer : abci_part_width(shape->collective, ABCI_IN) == ABCI_WIDE ? ABCI_IN : ABCI_OUT;
    uint64_t count = v->count[like][b], size = shape->element;
    uint64_t first = shape->first < count ? shape->first : count;
    uint64_t length = shape->length < count - first ? shape->length : count - first;
    return (struct abci_range){
        .user = (v->offset[like][b] + first) * size, .area = single ? 0 : b * stride(shape), .bytes = length * size};
}

struct abci_range abci_part_block(const struct abci_shape *shape, int buffer, int block)
{
    struct abci_range range;
    uint64_t b = (uint64_t)block + abci_mutated("c2_off_by_one_block"), size = shape->element;
    if (abci_part_width(shape->collective, buffer) == ABCI_NARROW) {
        if (shape->nblocks == 1 && b == 0) /* the usual case, without divisions */
            return (struct abci_range){.user = shape->first * size, .area = 0, .bytes = shape->length * size};
        uint64_t start = narrow_start(shape, b);
        range.user = (shape->first + start) * size;
        range.area = start * size;
        range.bytes = (narrow_start(shape, b + 1) - start) * size;
        return range;
    }
    if (ABCI_UNLIKELY(shape->vector != NULL))
        return vector_block(shape, buffer, b);
    range.bytes = shape->length * size;
    if (abci_part_width(shape->collective, buffer) == ABCI_SINGLE)
        b = 0;
    range.user = (b * shape->count + shape->first) * size;
    range.area = b * stride(shape);
    return range;
}

bool abci_part_joined(const struct abci_shape *shape, int buffer)
{
    if (abci_part_width(shape->collective, buffer) != ABCI_WIDE)
        return true;
    return !shape->vector && shape->length == shape->count && stride(shape) == shape->length * shape->element;
}

uint64_t abci_part_end(const struct abci_shape *shape, int buffer)
{
    uint64_t one = shape->length * shape->element;
    return abci_part_width(shape->collective, buffer) == ABCI_WIDE ? (shape->nranks - 1) * stride(shape) + one : one;
}

uint64_t abci_part_area(const struct abci_shape *shape, int buffer)
{
    return round_line(abci_part_end(shape, buffer));
}

/* Elements that are never cut apart, and how many chunks of at most chunk_bytes there are. Chunks are nearly equal: no small rest.
 */
static uint64_t chunk_unit(abc_collective coll, int nranks, uint32_t element, uint64_t count, uint64_t chunk_bytes,
                           uint64_t *chunks)
{
    bool wide = abci_part_by_rank(coll);
    uint64_t all = (uint64_t)(element > 0 ? element : 1) * (wide ? (uint64_t)nranks : 1);
    uint64_t unit = line_elements(element);
    uint64_t most = chunk_bytes / all; /* elements of a chunk */
    if (most < unit)
        unit = 1;
    most = most / unit > 0 ? most / unit : 1; /* units */
    uint64_t units = count / unit + (count % unit != 0);
    *chunks = units > 0 ? units / most + (units % most != 0) : 1;
    return unit;
}

uint64_t abci_part_chunks(abc_collective coll, int nranks, uint32_t element, uint64_t count, uint64_t chunk_bytes)
{
    uint64_t chunks;
    chunk_unit(coll, nranks, element, count, chunk_bytes, &chunks);
    return chunks;
}

struct abci_cut abci_part_cut(const struct abci_shape *shape, uint64_t chunk_bytes)
{
    uint64_t chunks;
    uint64_t unit = chunk_unit(shape->collective, (int)shape->nranks, shape->element, shape->count, chunk_bytes, &chunks);
    uint64_t units = shape->count / unit + (shape->count % unit != 0);
    return (struct abci_cut){unit, units / chunks, units % chunks};
}

void abci_part_cut_chunk(struct abci_shape *shape, const struct abci_cut *cut, uint64_t n)
{
    uint64_t first = (n * cut->least + (n < cut->more ? n : cut->more)) * cut->unit;
    uint64_t end = first + (cut->least + (n < cut->more)) * cut->unit;
    shape->first = first;
    shape->length = (end < shape->count ? end : shape->count) - first;
}

void abci_part_chunk(struct abci_shape *shape, uint64_t chunk_bytes, uint64_t n)
{
    struct abci_cut cut = abci_part_cut(shape, chunk_bytes);
    abci_part_cut_chunk(shape, &cut, n);
}
