/*
 * peer.h - what bench/compare.c needs of the library that ours is compared with: join the job, share a few bytes, one blocking
 * call. One file peer_*.c or peer_*.cc implements it for each kind of peer; bench/peer_list.py says how they are built and started.
 * Each rank is a process with one thread that calls. Only peer_run is timed, so it does nothing but the peer's own call.
 */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include <stddef.h>
#include <stdint.h>

#include <abcomm/abcomm.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PEER_MOST_RANKS 512

/* What is called: an abc_collective, or a message. */
enum {
    PEER_SENDRECV = 256, /* `count` elements to the next rank and as many from the one before */
    PEER_PINGPONG        /* of two ranks: rank 0 sends and receives, rank 1 receives and sends */
};

/* Elements and first elements of the blocks to and from each rank, where they differ: as MPI takes them, and as we do. */
struct peer_blocks {
    int in[PEER_MOST_RANKS], in_at[PEER_MOST_RANKS], out[PEER_MOST_RANKS], out_at[PEER_MOST_RANKS];
    uint64_t wide_in[PEER_MOST_RANKS], wide_in_at[PEER_MOST_RANKS], wide_out[PEER_MOST_RANKS], wide_out_at[PEER_MOST_RANKS];
};

/* One call, sums where it reduces. Counts as abc_collective says; in == out: in place. Only some have a root, only some blocks. */
struct peer_call {
    int what;
    abc_type type;
    const void *in;
    void *out;
    uint64_t count;
    int root;
    const struct peer_blocks *blocks;
};

/* 0, or -1 after the reason on stderr. */
int peer_open(int *argc, char ***argv, int *rank, int *nranks);
/* Gives `bytes` of rank 0 to all; 0 on success. A bench_share_fn; the context is not used. */
int peer_share(void *context, void *data, size_t bytes);
/* 1 when the peer has this call for elements of this type. */
int peer_has(int what, abc_type type);
/* 0 on success. */
int peer_run(const struct peer_call *call);
/* compare_calls.c: the same call of our library. */
int peer_run_ours(const struct peer_call *call, abc_comm *comm);
/* Ends the whole job now, as a failure. */
void peer_abort(void);
void peer_close(void);

/*
 * peer_job.c, for peers without a launcher of their own: ranks that `abcomm run` has started find each other through our library.
 * The communicator is for sharing; between two shares it does nothing.
 */
abc_comm *peer_job_open(int *rank, int *nranks); /* NULL after the reason on stderr */
int peer_job_share(void *data, size_t bytes);
void peer_job_close(void);

#ifdef __cplusplus
}
#endif

#endif
