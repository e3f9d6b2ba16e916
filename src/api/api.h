/* api.h - stage 0, inside: what the files of the API share. */
#ifndef ABCI_API_H
#define ABCI_API_H

#include "comm/comm.h"

/* prepare.c: check a call and fill a request that the engine can run. On error nothing has happened. */
int abci_prepare(abc_comm *comm, const abc_call *call, struct abc_request *request);
/* The same; and what has decided on the algorithm. */
int abci_prepare_why(abc_comm *comm, const abc_call *call, struct abc_request *request, enum abci_why *why);
/* message.c: the same for ABC_SEND and ABC_RECV; `comm` is usable. */
int abci_message_prepare(abc_comm *comm, const abc_call *call, struct abc_request *request);
/* The same and run it to its end. */
int abci_message_run(abc_comm *comm, const abc_call *call);
/* The text of a receive whose message did not fit. */
int abci_message_refused(const struct abc_request *request);
/* request.c: the status of a request that is over, with its text for the calling thread. */
int abci_report(const struct abc_request *request, int status);
/* prepare.c: the pass over the input that a scaled sum needs, before each start; nothing for others. */
void abci_scale(const struct abc_request *request);
/* counts.c: a copy of the counts and offsets of a call with a count for each rank, checked, in q->counts; and the request that
 * exchanges them, where not all ranks know them. On error q->counts is what has been made so far. */
int abci_counts_make(abc_comm *comm, const abc_call *call, struct abc_request *q);
/* Does a block of the input lie in one of the output? Buffers may be interleaved as long as their blocks are apart. */
bool abci_counts_mingle(const abc_comm *comm, const abc_call *call, const struct abc_request *q);
/* What ranks must agree on: the hash of all counts, where every rank knows them. */
uint32_t abci_counts_hash(const abc_comm *comm, const struct abc_request *q);
/* Before a persistent request starts again: do its buffers still lie where they lay? */
void abci_prepare_again(struct abc_request *request);
/* request.c: start a prepared request, again or for the first time; what it needs of its input first; and give it back. */
void abci_request_launch(struct abc_request *request);
void abci_request_keep(struct abc_request *request);
void abci_request_dispose(struct abc_request *request);
/* group.c: keep a prepared request until the group ends; or note that a call of it was refused, whose text is the last error. */
void abci_group_add(struct abci_group *group, struct abc_request *request);
int abci_group_refuse(struct abci_group *group, int status);
/* While a thread drives operations, their callbacks start theirs at once, whatever group the thread has open. */
static inline struct abci_group *abci_group_pause(void)
{
    struct abci_group *group = abci_group_here();
    if (ABCI_UNLIKELY(group != NULL))
        abci_group_set(NULL);
    return group;
}
static inline void abci_group_resume(struct abci_group *group)
{
    if (ABCI_UNLIKELY(group != NULL))
        abci_group_set(group);
}
/* op.c: a copy of the user operation, ABC_ERR_ARGUMENT when there is none of that number. */
int abci_op_get(abc_op op, struct abci_user_op *user);

#endif
