/*
 * run_stage.c - stage 3: memory in which an instance shows blocks that peers cannot read where they are. Runs under the claim;
 * allocates only when staging has to grow.
 *
 * Two ranks pass tokens: pieces of staging that belong to whoever has read them last, so that a rank writes where it has read. A
 * line that the other core has read must be fetched back before its owner may write it (8 GB/s between distant cores, measured); a
 * line that this core has just read is in its own cache. It needs no flag that says "free": whoever has read a token's block owns
 * the token. So the writer must be through with it by then, which plans with temporaries are not. A rank that only writes runs out
 * of tokens and then, like ranks of larger communicators always, borrows regions of its own, last in, first out.
 */
#include "plan/price.h"
#include "plan/run_internal.h"

_Static_assert(ABCI_PACKED == ABCI_INLINE_HEADER, "areas without gaps are those that a header holds");

#define REGION_SMALL (64u << 10)
#define TILED_FROM (8u << 10) /* bytes of a result, see abci_reduce_staged */
#define TILE (32u << 10)      /* they stay in a near cache between the sum and its copy */
#define REGIONS_LARGE 4       /* per engine; more instances wait */

static bool region_over(struct abci_engine *e, struct abci_region *r)
{
    if (e->next_sequence - r->sequence >= ABCI_SLOTS)
        return true; /* its slot has been given to another since; asking would fail 2^31 sequences later */
    for (int p = 0; p < e->shm->nranks; p++)
        if (p != e->shm->rank && !abci_shm_peer_done(&e->shm->peer[p], r->sequence) && !abci_mutated("c5_region_reused_early")) {
            abci_blocked_by(e, p);
            return false;
        }
    return true;
}

void abci_regions_free(struct abci_engine *e)
{
    for (struct abci_region *r = e->regions, *next; r; r = next) {
        next = r->next;
        abci_segment_free(r->memory);
        abci_free(r);
    }
    e->regions = NULL;
}

static struct abci_region *new_region(uint64_t bytes)
{
    struct abci_region *r = abci_alloc(sizeof *r);
    void *memory;
    if (!r || abci_segment_alloc(bytes, &memory, &r->offset) != ABC_OK) {
        abci_free(r);
        return NULL;
    }
    r->memory = memory;
    r->bytes = bytes;
    return r;
}

/* Borrow the most recently used region that is over and large enough. ABC_PENDING when all that may exist are in use. */
static int borrow_region(struct abci_engine *e, uint64_t bytes, struct abci_region **out)
{
    bool small = bytes <= REGION_SMALL;
    uint64_t want = small ? REGION_SMALL : bytes;
    int others = 0;
    struct abci_region **at = &e->regions, **replace = NULL;
    for (; *at; at = &(*at)->next) {
        struct abci_region *r = *at;
        if (small != (r->bytes <= REGION_SMALL))
            continue;
        others++;
        if (r->used || !region_over(e, r))
            continue;
        if (r->bytes >= bytes)
            break;
        replace = at;
    }
    struct abci_region *found = *at;
    if (found) {
        *at = found->next;
    } else if (others < (small ? ABCI_SLOTS + 2 : REGIONS_LARGE) || replace) {
        if (replace && others >= REGIONS_LARGE) {
            struct abci_region *old = *replace;
            *replace = old->next;
            abci_segment_free(old->memory);
            abci_free(old);
        }
        found = new_region(want);
        if (!found)
            return abci_error(ABC_ERR_MEMORY, "%llu bytes of staging cannot be had", (unsigned long long)want);
    } else {
        return ABC_PENDING;
    }
    found->next = e->regions;
    e->regions = found;
    found->used = true;
    abci_segment_open(found->memory, bytes);
    abci_segment_shut(found->memory + bytes, found->bytes - bytes);
    *out = found;
    return ABC_OK;
}

/*
 * From how many bytes of a block on staging is a copy too many, if it lies in huge pages; 0: never. An alltoall's block has a
 * single reader: what is shown to all is staged once for all, and of a root's work half is done by its readers. Crowded it takes
 * fewer turns, so smaller blocks pay. Between two near cores allgather gains, too; between distant ones it is slower from 4 MiB on,
 * for staging is read from a cache and the input is not.
 */
static uint64_t huge_from(const struct abci_engine *e, const struct abci_shape *s)
{
    const uint64_t least = (uint64_t)e->machine.remote_huge << 10;
    if (s->collective == ABC_ALLTOALL)
        return s->nranks == 2 ? 2 * least : least;
    return s->collective == ABC_ALLGATHER && s->nranks == 2 && e->machine.price.hand_off < ABCI_DISTANT ? 4 * least : 0;
}

/* Of blocks of different sizes the longest speaks for all. */
static bool longest_is_huge(const struct abci_instance *inst, int buffer, uint64_t from)
{
    const struct abci_vector *v = inst->shape.vector;
    const uint64_t element = inst->shape.element;
    uint64_t longest = 0;
    for (uint64_t r = 0; r < inst->shape.nranks; r++)
        longest = v->count[buffer][r] > v->count[buffer][longest] ? r : longest;
    return v->count[buffer][longest] * element >= from &&
           abci_shm_is_huge(abci_user(inst, buffer) + v->offset[buffer][longest] * element, v->count[buffer][longest] * element);
}

/*
 * Shall peers read this private buffer where it is? Asked once an operation, for its chunks must not differ: whoever reads the
 * first reads ahead.
 */
static bool reads_remote(const struct abci_engine *e, const struct abci_instance *inst, int buffer)
{
    const struct abci_shape *s = &inst->shape;
    const uint64_t block = s->count * s->element;
    const uint64_t whole = abci_part_width(s->collective, buffer) == ABCI_WIDE ? block * s->nranks : block;
    if (!e->shm->remote_for_all)
        return false;
    if (e->machine.remote_from && whole >= (uint64_t)e->machine.remote_from << 10)
        return true;
    const uint64_t from = huge_from(e, s);
    if (!from || !inst->run->reads_ahead || block < from)
        return false;
    return s->vector && s->collective == ABC_ALLTOALL ? longest_is_huge(inst, buffer, from)
                                                      : abci_shm_is_huge(abci_user(inst, buffer), whole);
}

static uint8_t choose_mode(const struct abci_engine *e, const struct abci_instance *inst, int buffer)
{
    bool published = buffer == ABCI_IN ? inst->run->publishes_in : inst->run->publishes_out;
    if (!published)
        return ABCI_MODE_NONE;
    if (buffer == ABCI_IN && inst->run->plan->stage_in_place && inst->request->in_place)
        return ABCI_MODE_STAGED; /* the plan overwrites it while peers may still read */
    bool lists = inst->shape.vector && abci_part_width(inst->shape.collective, buffer) == ABCI_WIDE;
    if (lists && (inst->request->is_direct[buffer] || buffer != ABCI_IN || !abci_counts_placed(inst->request)))
        return ABCI_MODE_STAGED; /* peers do not know the offsets of this rank's blocks */
    if (inst->request->is_direct[buffer])
        return ABCI_MODE_DIRECT;
    if (inst->request->issued == 0)
        inst->request->remote[buffer] = reads_remote(e, inst, buffer);
    return inst->request->remote[buffer] ? ABCI_MODE_REMOTE : ABCI_MODE_STAGED;
}

int abci_token_take(struct abci_engine *e)
{
    int token = e->token[--e->tokens];
    if (abci_mutated("c5_swap_reused_early"))
        e->tokens++;
    return token;
}

char *abci_token_memory(const struct abci_engine *e, int token)
{
    return e->shm->swap[token / ABCI_SWAPS] + (uint64_t)(token % ABCI_SWAPS) * ABCI_SWAP_BYTES + ABCI_SWAP_SHIFT;
}

uint64_t abci_token_offset(const struct abci_engine *e, int token)
{
    return e->shm->peer[token / ABCI_SWAPS].control->swap_offset + (uint64_t)(token % ABCI_SWAPS) * ABCI_SWAP_BYTES +
           ABCI_SWAP_SHIFT;
}

void abci_tokens_open(struct abci_engine *e)
{
    for (int i = 0; i < ABCI_SWAPS && e->shm->nranks == 2; i++)
        e->token[e->tokens++] = (uint8_t)(e->shm->rank * ABCI_SWAPS + i);
    for (int token = 0; token < 2 * ABCI_SWAPS && e->shm->nranks == 2; token++)
        abci_segment_shut(abci_token_memory(e, token) - ABCI_SWAP_SHIFT, ABCI_SWAP_SHIFT);
}

void abci_tokens_close(struct abci_engine *e)
{
    for (int r = 0; r < 2 && e->shm->nranks == 2; r++)
        if (r != e->shm->rank) /* the owner gives it back, and another use of that memory knows no tokens */
            abci_segment_open(e->shm->swap[r], (uint64_t)ABCI_SWAPS * ABCI_SWAP_BYTES);
}

static int own_region(struct abci_engine *e, struct abci_instance *inst, uint64_t bytes)
{
    int status = borrow_region(e, bytes, &inst->region);
    if (status != ABC_OK)
        return status;
    inst->region->sequence = inst->sequence;
    inst->tmp = inst->region->memory;
    inst->staging_offset = inst->region->offset;
    return ABC_OK;
}

/*
 * The part of a staged buffer's area that holds the blocks which are shown: where it begins, and how long it is in whole lines.
 * With two ranks that show each other different blocks both then begin at the same place of a token, so that each writes where it
 * has read.
 */
static uint64_t shown_part(const struct abci_instance *inst, int buffer, uint64_t *bytes)
{
    struct abci_range first = abci_part_block(&inst->shape, buffer, inst->run->first_shown[buffer]);
    struct abci_range last = abci_part_block(&inst->shape, buffer, inst->run->last_shown[buffer]);
    uint64_t from = first.area / ABCI_LINE * ABCI_LINE;
    *bytes = (last.area + last.bytes - from + ABCI_LINE - 1) / ABCI_LINE * ABCI_LINE;
    return from;
}

int abci_take_staging(struct abci_engine *e, struct abci_instance *inst, uint64_t bytes)
{
    if (e->tokens == 0 || inst->run->keeps_staging || bytes > ABCI_TOKEN_ROOM)
        return own_region(e, inst, bytes ? bytes : ABCI_LINE);
    int token = abci_token_take(e);
    inst->tmp = abci_token_memory(e, token);
    inst->staging_offset = abci_token_offset(e, token);
    inst->token = (uint8_t)(token + 1);
    return ABC_OK;
}

int abci_lay_out(struct abci_engine *e, struct abci_instance *inst)
{
    const struct abci_plan *plan = inst->run->plan;
    uint64_t at = 0, area[2] = {0, 0};
    inst->tmp_area = plan->ntmp ? abci_part_area(&inst->shape, ABCI_TMP) : 0;
    inst->tmp = NULL;
    inst->staging_offset = 0;
    at = inst->tmp_area * plan->ntmp;
    bool needed = plan->ntmp;
    for (int b = ABCI_IN; b <= ABCI_OUT; b++) {
        inst->mode[b] = choose_mode(e, inst, b);
        inst->request->read_in_place |= inst->mode[b] >= ABCI_MODE_DIRECT;
        inst->stage[b] = NULL;
        if (inst->mode[b] == ABCI_MODE_STAGED) {
            uint64_t bytes;
            area[b] = at - shown_part(inst, b, &bytes); /* of block 0: may lie before the staging, and is not touched then */
            at += bytes;
            needed = true;
        }
    }
    if (!needed)
        return ABC_OK;
    int status = abci_take_staging(e, inst, at);
    for (int b = ABCI_IN; b <= ABCI_OUT && status == ABC_OK; b++)
        if (inst->mode[b] == ABCI_MODE_STAGED)
            inst->stage[b] = inst->tmp + (int64_t)area[b];
    return status;
}

/*
 * A store to what other cores have read last waits until the line has been fetched back, which takes several times as long as all
 * the rest between distant cores. memcpy's string instruction overwrites whole lines without that. 4 ranks on 2 CPUs by a second
 * store and so, far: 128 KiB 25 and 20 us, 512 KiB 76 and 60; near: 12.2 and 13.1, 41 and 42; from 2 MiB on 5 to 25 % less at
 * either distance. Which it is may change while the job runs, so it is not asked.
 */
void abci_reduce_staged(struct abci_reduction *how, char *dst, char *room, const void **src, int nsrc, uint64_t bytes,
                        uint64_t element)
{
    uint64_t tile = TILE / element * element;
    if (!room || bytes < TILED_FROM) {
        abci_reduce(how, dst, room, src, nsrc, bytes / element);
        return;
    }
    how->store = ABCI_STORE_PLAIN; /* what is streamed is not there to be copied */
    for (uint64_t at = 0; at < bytes; at += tile) {
        uint64_t part = bytes - at < tile ? bytes - at : tile;
        for (int k = 0; at > 0 && k < nsrc; k++)
            src[k] = (const char *)src[k] + tile;
        abci_reduce(how, dst + at, NULL, src, nsrc, part / element);
        abci_copy(room + at, NULL, dst + at, part, ABCI_STORE_PLAIN);
    }
}

void abci_copy_staged(char *dst, char *room, const char *src, uint64_t bytes, enum abci_store store)
{
    if (!room || bytes < TILED_FROM) {
        abci_copy(dst, room, src, bytes, store);
        return;
    }
    for (uint64_t at = 0; at < bytes; at += TILE) {
        uint64_t part = bytes - at < TILE ? bytes - at : TILE;
        abci_copy(room + at, NULL, src + at, part, ABCI_STORE_PLAIN);
        abci_copy(dst + at, NULL, src + at, part, store);
    }
}
