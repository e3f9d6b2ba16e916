/*
 * abcomm.h - the whole public C API of libabcomm: collectives for data-parallel training. These comments are the manual.
 *
 * Rules for every call:
 *
 * - Return: an abc_status, 0 on success, negative on error (abc_status_text, abc_last_error say more). Outputs are
 *   set only on success.
 * - Order: all ranks of a communicator start the same collectives in the same order. A difference is reported, never
 *   silently computed. Messages between two ranks (abc_send) are matched by source and tag instead.
 * - Threads: every function may be called by any thread. Calls on one communicator are serialised by the library; the
 *   order in which two threads start operations on one communicator is theirs to fix. Several ranks may live in one
 *   process.
 * - Progress: an operation advances while some thread is in a call on its communicator, or all the time where that has a
 *   progress thread. Calls on other communicators do not advance it: ranks that share several communicators must block on
 *   them in one order, or give them progress threads.
 * - Memory: the caller owns its buffers. From start until wait has returned the input may not be written and the
 *   output not be touched; after wait has returned, whatever the status, the library touches neither.
 * - Errors: those found before an operation is numbered (bad arguments) leave the communicator usable and the buffers
 *   untouched. Others (peer death, timeout, mismatch, abort) end the communicator on all ranks; out-of-place input is
 *   intact, in-place contents are undefined unless abc_call.preserve was set.
 * - Units: counts are elements (64 bits), times are seconds.
 */
#ifndef ABCOMM_H
#define ABCOMM_H

#include <stddef.h>
#include <stdint.h>

#include <abcomm/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ABC_API __attribute__((visibility("default")))
#else
#define ABC_API
#endif

#define ABC_VERSION_MAJOR 0
#define ABC_VERSION_MINOR 1
#define ABC_VERSION_PATCH 0

typedef struct abc_comm abc_comm;       /* one rank's end of a communicator */
typedef struct abc_request abc_request; /* one started or persistent operation */

/*
 * Element types. bf16, f16 and the two of eight bits are reduced in float32 and rounded once (nearest, ties to even) by the default
 * algorithms. fp8_e4m3 is the finite kind ("fn"): its largest number is 448, it has no infinity, and what is too large becomes NaN;
 * fp8_e5m2 becomes infinite beyond 57344. A bool is one byte; anything but 0 is true, results are 0 or 1. A complex number is its
 * real and then its imaginary part. Pairs, for ABC_MINLOC and ABC_MAXLOC, are laid out as in C:
 *   ABC_F32_I32  struct { float value; int32_t index; }      8 bytes
 *   ABC_I32_I32  struct { int32_t value; int32_t index; }    8 bytes
 *   ABC_F64_I32  struct { double value; int32_t index; }    16 bytes, of which the last 4 are not data; results have 0 there
 */
typedef enum abc_type {
    ABC_F32 = 0,
    ABC_F64 = 1,
    ABC_BF16 = 2,
    ABC_I32 = 3,
    ABC_F16 = 4,
    ABC_FP8_E4M3 = 5,
    ABC_FP8_E5M2 = 6,
    ABC_I8 = 7,
    ABC_U8 = 8,
    ABC_I16 = 9,
    ABC_U16 = 10,
    ABC_U32 = 11,
    ABC_I64 = 12,
    ABC_U64 = 13,
    ABC_BOOL = 14,
    ABC_COMPLEX64 = 15,
    ABC_COMPLEX128 = 16,
    ABC_F32_I32 = 17,
    ABC_F64_I32 = 18,
    ABC_I32_I32 = 19,
    ABC_TYPE_COUNT
} abc_type;

/*
 * Reductions, and the types that have them (abc_op_fits tells too):
 *   sum, prod                                  all but pairs; bool: or, and
 *   avg                                        all but bool and pairs
 *   min, max                                   all but complex and pairs; bool: and, or
 *   band, bor, bxor (bitwise), land, lor, lxor (logical, results 0 or 1)    integers and bool
 *   minloc, maxloc                             pairs
 * Floating sums add in rank order whatever the size, alignment or instruction set, unless an algorithm is named that does not
 * (`abcomm plan --list` tells; ABCOMM_DETERMINISTIC=strict refuses such). Integer sums and products wrap (two's complement);
 * integer averages divide the wrapped sum, truncating toward zero. min and max propagate NaN and put -0 below +0. minloc and
 * maxloc take the smallest index among equal values; a NaN beats every number. Where one rank's values are the whole result (one
 * rank, the first in a scan) they are passed on bit for bit, those of bools and of logical operations too. abc_op_create and
 * abc_op_create_scaled make further ones.
 */
typedef enum abc_op {
    ABC_SUM = 0,
    ABC_MIN = 1,
    ABC_MAX = 2,
    ABC_AVG = 3,
    ABC_PROD = 4,
    ABC_BAND = 5,
    ABC_BOR = 6,
    ABC_BXOR = 7,
    ABC_LAND = 8,
    ABC_LOR = 9,
    ABC_LXOR = 10,
    ABC_MINLOC = 11,
    ABC_MAXLOC = 12,
    ABC_OP_COUNT,
    ABC_OP_USER = 64,
    ABC_OP_LIMIT = 128
} abc_op;

typedef enum abc_collective {
    ABC_ALLREDUCE = 0,      /* in: count, out: count                              */
    ABC_REDUCE_SCATTER = 1, /* in: count * size, out: count (block `rank`)        */
    ABC_ALLGATHER = 2,      /* in: count, out: count * size                       */
    ABC_BROADCAST = 3,      /* in: count (root only), out: count on every rank    */
    ABC_BARRIER = 4,        /* no buffers                                         */
    ABC_REDUCE = 5,         /* in: count, out: count (root only)                  */
    ABC_GATHER = 6,         /* in: count, out: count * size (root only)           */
    ABC_SCATTER = 7,        /* in: count * size (root only), out: count           */
    ABC_ALLTOALL = 8, /* in: count * size, out: count * size; block r of `in` goes to rank r, block r of `out` comes from it */
    ABC_SCAN = 9,     /* in: count, out: count, the sum over ranks 0 to `rank` */
    ABC_EXSCAN = 10,  /* in: count, out: count, the sum over ranks 0 to `rank` - 1; rank 0's output is left alone */
    /* The same with a count for each rank: see abc_gatherv and the others. */
    ABC_GATHERV = 11,
    ABC_SCATTERV = 12,
    ABC_ALLGATHERV = 13,
    ABC_REDUCE_SCATTERV = 14,
    ABC_ALLTOALLV = 15,
    ABC_COLLECTIVE_COUNT,
    ABC_SEND = 64, /* in: count, to rank `root`; see abc_send            */
    ABC_RECV = 65  /* out: at most count, from rank `root`; see abc_recv */
} abc_collective;

/* Bytes of one element, 0 for an unknown type. */
ABC_API size_t abc_type_size(abc_type type);
/* 1 if there is such a reduction of such elements, else 0; operations of abc_op_create fit every type. */
ABC_API int abc_op_fits(abc_op op, abc_type type);
/* "f32", "sum", "allreduce"; "?" for unknown values. Static strings. */
ABC_API const char *abc_type_name(abc_type type);
ABC_API const char *abc_op_name(abc_op op);
ABC_API const char *abc_collective_name(abc_collective coll);

/* Meaning and remedy of a status; static strings, never NULL. */
ABC_API const char *abc_status_name(int status);
ABC_API const char *abc_status_text(int status);
ABC_API const char *abc_status_remedy(int status);
/* The calling thread's last error: what happened and what to do; for a failed operation also rank, host and call. Valid until the
 * thread's next call. */
ABC_API const char *abc_last_error(void);
/* Version of the loaded library as "major.minor.patch". */
ABC_API const char *abc_version(void);

/* ---- Communicators ------------------------------------------------------------------------------------------------- */

/*
 * A key-value exchange over which a communicator is created: torch's Store, PMIx, an MPI communicator... Functions return an
 * abc_status. They are called only during abc_comm_create, by the calling thread. Values are at most 64 KiB. The keys are the same
 * for each creation: if the table outlives one, the functions must add a prefix of their own to them.
 */
typedef struct abc_exchange {
    size_t size; /* sizeof(abc_exchange), set by abc_exchange_init */
    void *ctx;
    /* Publish a value. */
    int (*put)(void *ctx, const char *key, const void *value, size_t length);
    /* Block until the key exists or the time is over (ABC_ERR_TIMEOUT). */
    int (*wait)(void *ctx, const char *key, double timeout);
    /* Copy the value out: *length holds the capacity on entry and the true length on return. */
    int (*get)(void *ctx, const char *key, void *value, size_t *length);
} abc_exchange;
ABC_API void abc_exchange_init(abc_exchange *exchange);

/* How to create a communicator. Fill with abc_comm_config_init, then set what differs. Nothing is kept after creation. */
typedef struct abc_comm_config {
    size_t size;                  /* sizeof(abc_comm_config), set by init */
    int rank;                     /* this rank, or -1: take rank, size, address and key from the environment */
    int nranks;                   /* number of ranks */
    const char *address;          /* rendezvous: "host:port" or "[ipv6]:port" of rank 0, or "unix:@name" */
    const abc_exchange *exchange; /* used instead of an address when not NULL; rank and nranks must be set */
    const void *key;        /* job key that authenticates ranks to each other; NULL: ABCOMM_KEY_FILE or none (loopback only) */
    size_t key_length;      /* 16 bytes or more */
    double connect_timeout; /* seconds until creation gives up; 0: ABCOMM_CONNECT_TIMEOUT (120) */
    double timeout;         /* seconds until an operation gives up; 0: ABCOMM_TIMEOUT (300) */
    int progress_thread;    /* 1: a thread advances started operations; 0: test and wait do; -1: ABCOMM_PROGRESS (0) */
} abc_comm_config;
ABC_API void abc_comm_config_init(abc_comm_config *config);

/*
 * Create a communicator; collective over its ranks; blocks until all have come. config NULL means "from the environment", which
 * `abcomm run`, torchrun, mpirun, srun, or ABCOMM_RANK / ABCOMM_SIZE / ABCOMM_ADDR, provide. When it fails on one rank it fails on
 * all.
 *
 * Several communicators may be created through one address, one after another and in the same order on all ranks; the ranks may be
 * threads of one process. Two creations at once through one address would take each other's ranks: when several threads of a rank
 * create communicators, let one wait for the other, or give each an address of its own, or use abc_comm_split.
 */
ABC_API int abc_comm_create(const abc_comm_config *config, abc_comm **comm);
/*
 * Partition: ranks with equal color >= 0 form a new communicator, ordered by (key, old rank); color < 0 takes no part and gets
 * NULL. Collective over `comm`, ordered with its operations.
 */
ABC_API int abc_comm_split(abc_comm *comm, int color, int key, abc_comm **newcomm);
/*
 * Release. Not collective: returns once peers have stopped reading this rank's memory. ABC_ERR_STATE, and nothing is released,
 * while a request is in progress or not freed. Otherwise all is released, and the status is that of the failure if there was one.
 * NULL is allowed.
 */
ABC_API int abc_comm_destroy(abc_comm *comm);
/* End the communicator on all ranks now; never blocks; every operation in progress returns ABC_ERR_ABORTED. destroy is still due.
 */
ABC_API int abc_comm_abort(abc_comm *comm, const char *reason);
ABC_API int abc_comm_rank(const abc_comm *comm);
ABC_API int abc_comm_size(const abc_comm *comm);
/* ABC_OK while usable, else the status that ended it. */
ABC_API int abc_comm_status(const abc_comm *comm);
/* Copy the text of the failure that ended the communicator (empty while usable) into text, always terminated. Returns
 * abc_comm_status. */
ABC_API int abc_comm_error(const abc_comm *comm, char *text, size_t capacity);
/*
 * Add an algorithm from a plan in JSON (as `abcomm plan --json` prints it) under its name; all ranks load the same text. The plan
 * is checked first unless check is 0. Select it by abc_call.algorithm.
 */
ABC_API int abc_comm_load_plan(abc_comm *comm, const char *json, int check);

/* ---- Memory that peers read directly ------------------------------------------------------------------------------- */

/*
 * Allocate memory that other ranks of this machine can read without a copy ("arena"). Page-aligned, with undefined contents, usable
 * with every communicator of the process, also before any exists. A child made by fork() shares it. free accepts NULL; freeing a
 * buffer that an operation uses is an error of the caller.
 *
 * An allreduce is quickest, most of all in place, when the buffers of all ranks lie in such memory and each output begins at a page
 * and ends at one or at the end of its allocation: peers then write their parts of the result into it. If such an operation fails,
 * the output's pages become ordinary private memory, at the same address.
 */
ABC_API int abc_mem_alloc(size_t bytes, void **ptr);
ABC_API int abc_mem_free(void *ptr);

/* ---- Operations ---------------------------------------------------------------------------------------------------- */

/*
 * User-defined reduction: inout[i] = in[i] (op) inout[i] for i < count; `in` stands for lower ranks. Must be associative. Called by
 * the thread that drives the communicator; must not call the library. Slices may be reduced by different ranks.
 */
typedef void (*abc_op_fn)(const void *in, void *inout, uint64_t count, abc_type type, void *context);
/*
 * For an operation that cannot do its work: called inside its function, which then returns. What it leaves in `inout` is not used:
 * the communicator ends on all ranks (ABC_ERR_ABORTED) with this reason. Ranks that have added everything themselves hear it at
 * their next call. Elsewhere it does nothing.
 */
ABC_API void abc_op_fail(const char *reason);
/* Make an operation; all ranks create theirs with the same `commutes`. Up to 64 exist at a time in a process. */
ABC_API int abc_op_create(abc_op_fn fn, int commutes, void *context, abc_op *op);
/*
 * Make a scaled sum: every rank's input is multiplied by its own scalar, rounded to the type, and the products are added. The
 * scalar is one element of that type, and is copied; ranks may give different ones. For all types but bool and pairs. Costs a pass
 * over the input, and for reduce_scatter a copy of it.
 */
ABC_API int abc_op_create_scaled(const void *scalar, abc_type type, abc_op *op);
ABC_API int abc_op_free(abc_op op);

/* Pass as input, or as output where the input is the larger or equal one, to work in place. Not for both. */
#define ABC_IN_PLACE ((const void *)(intptr_t)-1)

/* Runs when the operation is over, on the thread that drove it to its end, before test and wait say so; may start operations, must
 * not wait for any. */
typedef void (*abc_callback)(abc_request *request, int status, void *context);

/* What a receive has brought. */
typedef struct abc_received {
    int source;     /* the sender */
    int tag;        /* the message's */
    uint64_t count; /* elements of the message; what is behind them in the buffer is as it was */
    abc_type type;
} abc_received;

/* One operation with all its options. Fill with abc_call_init, then set what differs. */
typedef struct abc_call {
    size_t size; /* sizeof(abc_call), set by init */
    abc_collective collective;
    const void *in; /* see abc_collective for counts; ABC_IN_PLACE, or the matching part of out, works in place */
    void *out;
    uint64_t count;
    abc_type type;
    abc_op op;
    int root;
    double timeout;        /* seconds; 0: the communicator's */
    const char *algorithm; /* NULL: chosen; else a name of `abcomm plan --list` or a loaded plan, "ring@64K": with chunk */
    const char *codec;     /* reserved: NULL */
    int priority;          /* reserved for ordering of execution: 0 */
    int tag;               /* of a message: see abc_send; else free for the caller, shown in diagnosis */
    void *stream;          /* reserved for devices: NULL */
    int preserve;          /* 1: in-place contents survive an error (costs one copy) */
    abc_callback callback; /* may be NULL */
    void *callback_context;
    abc_received *received; /* ABC_RECV: filled when it is complete, and valid until then; may be NULL */
    /* For collectives with a count for each rank, `size` elements each; copied when the call is made. Offsets are in elements from
     * the start of the buffer; NULL: blocks lie one after another. */
    const uint64_t *in_counts, *in_offsets;   /* of `in`: scatterv (root), reduce_scatterv, alltoallv */
    const uint64_t *out_counts, *out_offsets; /* of `out`: gatherv (root), allgatherv, alltoallv */
} abc_call;
ABC_API void abc_call_init(abc_call *call, abc_collective collective);

/*
 * Say how a call would be run, without running it: "twoshot@1048576 by price". The first word, algorithm and bytes of a chunk, is
 * what abc_call.algorithm understands; the word behind "by" tells what has decided: price, file (ABCOMM_TUNING), setting or call.
 * More follows when another algorithm is run if all ranks' buffers lie in memory of abc_mem_alloc.
 */
ABC_API int abc_explain(abc_comm *comm, const abc_call *call, char *text, size_t capacity);
/* Run a call to its end. */
ABC_API int abc_run(abc_comm *comm, const abc_call *call);
/* Start a call; never blocks. The request is the caller's until abc_wait (which frees it) or abc_request_free after completion. */
ABC_API int abc_start(abc_comm *comm, const abc_call *call, abc_request **request);
/* Make a persistent request: abc_restart starts it, abc_wait completes it without freeing, any number of times. */
ABC_API int abc_request_create(abc_comm *comm, const abc_call *call, abc_request **request);
ABC_API int abc_restart(abc_request *request);
/* Advance and ask: ABC_PENDING, or the operation's status. Frees nothing. */
ABC_API int abc_test(abc_request *request);
/* Block until complete; returns the operation's status. Frees a request of abc_start and sets *request to NULL. */
ABC_API int abc_wait(abc_request **request);
/* Free a completed or never started request. ABC_ERR_STATE while in progress. */
ABC_API int abc_request_free(abc_request *request);

/* The common calls, blocking. */
ABC_API int abc_allreduce(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm);
ABC_API int abc_reduce_scatter(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm);
ABC_API int abc_allgather(const void *in, void *out, uint64_t count, abc_type type, abc_comm *comm);
ABC_API int abc_broadcast(const void *in, void *out, uint64_t count, abc_type type, int root, abc_comm *comm);
ABC_API int abc_barrier(abc_comm *comm);
/*
 * reduce, gather and scatter have a root. A buffer that only the root has (abc_collective tells) is ignored elsewhere and may be
 * NULL. In place at the root: reduce and gather with ABC_IN_PLACE as `in` there, scatter with ABC_IN_PLACE as `out`; or with the
 * matching part of the other buffer. alltoall, scan and exscan work in place on every rank; alltoall then copies its input first.
 *
 * scan and exscan add in rank order as allreduce does; there is no average of a prefix. A root's call may return before others
 * have called, and theirs before the root's: none of these is a barrier.
 */
ABC_API int abc_reduce(const void *in, void *out, uint64_t count, abc_type type, abc_op op, int root, abc_comm *comm);
ABC_API int abc_gather(const void *in, void *out, uint64_t count, abc_type type, int root, abc_comm *comm);
ABC_API int abc_scatter(const void *in, void *out, uint64_t count, abc_type type, int root, abc_comm *comm);
ABC_API int abc_alltoall(const void *in, void *out, uint64_t count, abc_type type, abc_comm *comm);
ABC_API int abc_scan(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm);
ABC_API int abc_exscan(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm);
/*
 * Blocks of different sizes. counts[r] belongs to rank r, may be 0, and may differ from rank to rank; offsets[r] says where the
 * block begins, NULL: one after another. Blocks of an output must not overlap. `count` is the own block's.
 *
 * allgatherv and reduce_scatterv take the same counts on all ranks. Of the others only sender and receiver know a size; they tell
 * each other, and a rank that expects another number than it is sent ends the communicator, with both numbers in the text, before
 * it writes its output. That costs one small message more than the form with equal blocks, but none in alltoallv and scatterv where
 * no block is longer than 512 bytes / ranks - 16; a rank of gatherv waits for the root's call. Offsets are a
 * rank's own affair. In place as the form with equal blocks; alltoallv with ABC_IN_PLACE as `in`, then in_counts and in_offsets are
 * not looked at.
 */
ABC_API int abc_gatherv(const void *in, uint64_t count, void *out, const uint64_t *counts, const uint64_t *offsets, abc_type type,
                        int root, abc_comm *comm);
ABC_API int abc_scatterv(const void *in, const uint64_t *counts, const uint64_t *offsets, void *out, uint64_t count, abc_type type,
                         int root, abc_comm *comm);
ABC_API int abc_allgatherv(const void *in, void *out, const uint64_t *counts, const uint64_t *offsets, abc_type type,
                           abc_comm *comm);
ABC_API int abc_reduce_scatterv(const void *in, void *out, const uint64_t *counts, abc_type type, abc_op op, abc_comm *comm);
ABC_API int abc_alltoallv(const void *in, const uint64_t *in_counts, const uint64_t *in_offsets, void *out,
                          const uint64_t *out_counts, const uint64_t *out_offsets, abc_type type, abc_comm *comm);
/* The same, started: complete them with abc_wait. */
ABC_API int abc_allreduce_start(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm,
                                abc_request **req);
ABC_API int abc_reduce_scatter_start(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm,
                                     abc_request **req);
ABC_API int abc_allgather_start(const void *in, void *out, uint64_t count, abc_type type, abc_comm *comm, abc_request **req);
ABC_API int abc_broadcast_start(const void *in, void *out, uint64_t count, abc_type type, int root, abc_comm *comm,
                                abc_request **req);
ABC_API int abc_barrier_start(abc_comm *comm, abc_request **req);
ABC_API int abc_reduce_start(const void *in, void *out, uint64_t count, abc_type type, abc_op op, int root, abc_comm *comm,
                             abc_request **req);
ABC_API int abc_gather_start(const void *in, void *out, uint64_t count, abc_type type, int root, abc_comm *comm, abc_request **req);
ABC_API int abc_scatter_start(const void *in, void *out, uint64_t count, abc_type type, int root, abc_comm *comm,
                              abc_request **req);
ABC_API int abc_alltoall_start(const void *in, void *out, uint64_t count, abc_type type, abc_comm *comm, abc_request **req);
ABC_API int abc_scan_start(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm, abc_request **req);
ABC_API int abc_exscan_start(const void *in, void *out, uint64_t count, abc_type type, abc_op op, abc_comm *comm,
                             abc_request **req);

/* Those with a count for each rank, started. Counts and offsets may change as soon as the call has returned. */
ABC_API int abc_gatherv_start(const void *in, uint64_t count, void *out, const uint64_t *counts, const uint64_t *offsets,
                              abc_type type, int root, abc_comm *comm, abc_request **req);
ABC_API int abc_scatterv_start(const void *in, const uint64_t *counts, const uint64_t *offsets, void *out, uint64_t count,
                               abc_type type, int root, abc_comm *comm, abc_request **req);
ABC_API int abc_allgatherv_start(const void *in, void *out, const uint64_t *counts, const uint64_t *offsets, abc_type type,
                                 abc_comm *comm, abc_request **req);
ABC_API int abc_reduce_scatterv_start(const void *in, void *out, const uint64_t *counts, abc_type type, abc_op op, abc_comm *comm,
                                      abc_request **req);
ABC_API int abc_alltoallv_start(const void *in, const uint64_t *in_counts, const uint64_t *in_offsets, void *out,
                                const uint64_t *out_counts, const uint64_t *out_offsets, abc_type type, abc_comm *comm,
                                abc_request **req);

/* ---- Messages between two ranks ------------------------------------------------------------------------------------ */

#define ABC_ANY_SOURCE (-1)
#define ABC_ANY_TAG (-1)

/*
 * Messages need no order with collectives, nor with messages of other pairs. Between two ranks of a communicator they do not
 * overtake each other: of several that fit a receive it gets the first one sent, and of several receives that fit a message the
 * first one started gets it. A rank may send to itself.
 *
 * Tags are 0 or more, chosen by the caller. A receive names source and tag, or takes any. The types must be the same. A message may
 * be shorter than the receive's count: `received` (or NULL) tells its length. One that is longer, or of another type, is dropped:
 * the receive ends with ABC_ERR_MISMATCH and leaves the buffer as it was, the sender does not notice, and the communicator goes on.
 *
 * A send is over when its buffer may be used again, which says nothing about the receiver. Up to 4096 bytes that is at once while
 * fewer than 63 messages from this rank to that one are not received yet; else it may be, or not before the receive is being done.
 * So memory is bounded whatever a rank sends, and two ranks that both send first and receive then need abc_sendrecv or started
 * calls. What is never received is an error (ABC_ERR_MISMATCH) of the receiver's abc_comm_destroy.
 *
 * abc_run, abc_start and abc_request_create take them as ABC_SEND (in, root = destination) and ABC_RECV (out, root = source), with
 * tag, timeout and callback; `algorithm` and `preserve` mean nothing there.
 */
ABC_API int abc_send(const void *in, uint64_t count, abc_type type, int dest, int tag, abc_comm *comm);
ABC_API int abc_recv(void *out, uint64_t count, abc_type type, int source, int tag, abc_comm *comm, abc_received *received);
/* Both at once, in any order; the buffers must not overlap. */
ABC_API int abc_sendrecv(const void *in, uint64_t in_count, int dest, int send_tag, void *out, uint64_t out_count, int source,
                         int recv_tag, abc_type type, abc_comm *comm, abc_received *received);
ABC_API int abc_send_start(const void *in, uint64_t count, abc_type type, int dest, int tag, abc_comm *comm, abc_request **req);
ABC_API int abc_recv_start(void *out, uint64_t count, abc_type type, int source, int tag, abc_comm *comm, abc_received *received,
                           abc_request **req);

/* ---- Groups of calls ----------------------------------------------------------------------------------------------- */

/*
 * Several calls as one. From abc_group_start to its abc_group_end the calling thread's operations, on any communicators, are
 * checked and kept; the end starts all of them together. Calls that block without a group (abc_run, abc_allreduce, abc_send...)
 * return at once and are waited for by the end, so their outputs and `received` are filled when that returns. Calls that start
 * (abc_start, abc_restart...) give their requests at once; these are in progress when the end returns, and until then abc_wait and
 * abc_test refuse them. Buffers belong to the operations from the call on.
 *
 * - Sends and receives of one group never wait for each other, nor do operations on several communicators: one thread may act for
 *   several ranks.
 * - Short allreduces of one type and operation that follow each other on a communicator are done as one, where no bit of a result
 *   changes by that. So all ranks make the same collectives in the same groups; a difference is reported as a mismatch.
 * - abc_group_end returns the first error, in the order of the calls. When the arguments of one were wrong (its call has said so)
 *   nothing of the group is started; requests that were given out end with that status. Nothing is left to free but these.
 * - Groups nest: inner ends start nothing. abc_comm_split is refused inside a group; messages to oneself are not.
 */
ABC_API int abc_group_start(void);
ABC_API int abc_group_end(void);
/* Leave the group, as end does, but start nothing: requests that were given out end with ABC_ERR_STATE, and so does the end of a
 * group around it. */
ABC_API int abc_group_drop(void);

#ifdef __cplusplus
}
#endif
#endif
