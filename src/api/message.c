/*
 * message.c - stage 0: messages between two ranks: is the call sound, and what it asks for; the common calls. After: the engine
 * (src/plan/run_mail.c). No state; any thread; no allocation.
 */
#include <string.h>

#include "api/api.h"

#define ADDRESSABLE (1ull << 47)

static int check_options(const abc_call *c)
{
    if (c->size != sizeof *c)
        return abci_error(ABC_ERR_VERSION, "abc_call has size %zu, this library knows %zu; call abc_call_init first", c->size,
                          sizeof *c);
    if (c->codec || c->stream || c->priority != 0)
        return abci_error(ABC_ERR_UNSUPPORTED, "codec, stream and priority are reserved; leave them NULL, NULL and 0");
    if (c->algorithm)
        return abci_error(ABC_ERR_UNSUPPORTED, "a message has no algorithm; leave it NULL");
    if (!(c->timeout >= 0))
        return abci_error(ABC_ERR_ARGUMENT, "timeout %g is not a number of seconds >= 0", c->timeout);
    return ABC_OK;
}

static int check_peer(const abc_comm *comm, const abc_call *c)
{
    bool send = c->collective == ABC_SEND;
    if ((c->root < 0 || c->root >= comm->nranks) && (send || c->root != ABC_ANY_SOURCE))
        return abci_error(ABC_ERR_ARGUMENT, "%s %d is not a rank; there are %d%s", send ? "destination" : "source", c->root,
                          comm->nranks, send ? "" : ", or ABC_ANY_SOURCE (-1)");
    if (c->tag < 0 && (send || c->tag != ABC_ANY_TAG))
        return abci_error(ABC_ERR_ARGUMENT, "tag %d is negative; tags are 0 or more%s", c->tag,
                          send ? "" : ", or ABC_ANY_TAG (-1)");
    return ABC_OK;
}

static int check_buffer(const abc_call *c)
{
    size_t element = abc_type_size(c->type);
    const void *buffer = c->collective == ABC_SEND ? c->in : c->out;
    if (element == 0)
        return abci_error(ABC_ERR_ARGUMENT, "type %d is unknown; use one of abc_type, ABC_F32 = 0 to ABC_I32_I32 = %d",
                          (int)c->type, ABC_TYPE_COUNT - 1);
    if (c->count > ADDRESSABLE / element)
        return abci_error(ABC_ERR_ARGUMENT, "count %llu of %s is more than memory can hold", (unsigned long long)c->count,
                          abc_type_name(c->type));
    if (buffer == ABC_IN_PLACE)
        return abci_error(ABC_ERR_ARGUMENT, "a message cannot be in place; pass the buffer");
    if (!buffer && c->count > 0)
        return abci_error(ABC_ERR_ARGUMENT, "the %s buffer is null", c->collective == ABC_SEND ? "input" : "output");
    return ABC_OK;
}

int abci_message_prepare(abc_comm *comm, const abc_call *c, struct abc_request *q)
{
    int status = check_options(c);
    if (status == ABC_OK)
        status = check_peer(comm, c);
    if (status == ABC_OK)
        status = check_buffer(c);
    if (status != ABC_OK)
        return status;
    bool send = c->collective == ABC_SEND;
    uint32_t element = (uint32_t)abc_type_size(c->type);
    q->comm = comm;
    q->run = q->direct_run = NULL;
    q->message = true;
    q->id = (struct abci_call_id){.collective = (uint8_t)c->collective,
                                  .type = (uint8_t)c->type,
                                  .root = (uint32_t)c->root,
                                  .count = c->count,
                                  .algorithm = (uint32_t)c->tag}; /* no plan has a place there */
    q->shape = (struct abci_shape){.collective = c->collective, .element = element, .count = c->count};
    q->in = send ? c->in : NULL;
    q->out = send ? NULL : c->out;
    q->in_place = q->plain = false;
    q->mail.peer = c->root;
    q->mail.bytes = c->count * element;
    q->mail.received = send ? NULL : c->received;
    q->planned = 1;
    q->is_direct[ABCI_OUT] = false;
    q->is_direct[ABCI_IN] = send && q->mail.bytes > ABCI_EAGER && abci_segment_find(q->in, q->mail.bytes, &q->direct[ABCI_IN]);
    q->timeout = c->timeout > 0 ? c->timeout : comm->timeout;
    q->callback = c->callback;
    q->callback_context = c->callback_context;
    q->tag = c->tag;
    return ABC_OK;
}

int abci_message_refused(const struct abc_request *q)
{
    char call[96];
    abci_call_describe(&q->id, call, sizeof call);
    return abci_error(ABC_ERR_MISMATCH, "rank %d: %s: rank %d has sent %llu %s with tag %d, which %s; the message is dropped",
                      q->comm->rank, call, q->mail.source, (unsigned long long)q->mail.got_count,
                      abc_type_name((abc_type)q->mail.got_type), q->mail.got_tag,
                      q->mail.got_type != q->id.type ? "is another type" : "is more than there is room for");
}

/* ---- Blocking ---- */

/* A call with no option set, whose arguments are sound beyond doubt: the engine may know a short way. */
static bool is_brief(const abc_comm *comm, const abc_call *c, struct abci_brief *b)
{
    bool send = c->collective == ABC_SEND;
    const void *buffer = send ? c->in : c->out;
    size_t element = abc_type_size(c->type);
    bool options = c->algorithm || c->callback || c->codec || c->stream || c->priority != 0 || c->timeout != 0;
    bool named = c->root >= 0 && c->root < comm->nranks && (c->tag >= 0 || (!send && c->tag == ABC_ANY_TAG));
    if (options || !named || c->size != sizeof *c || element == 0 || c->count > ADDRESSABLE / 16 || (uintptr_t)buffer + 1 <= 1 ||
        comm->fork_generation != abci_fork_generation)
        return false;
    *b = (struct abci_brief){.in = c->in,
                             .out = c->out,
                             .count = c->count,
                             .element = element,
                             .received = c->received,
                             .peer = c->root,
                             .tag = c->tag,
                             .type = (uint8_t)c->type,
                             .send = send};
    return true;
}

int abci_message_run(abc_comm *comm, const abc_call *c)
{
    struct abci_brief brief;
    struct abc_request q;
    if (is_brief(comm, c, &brief) && ABCI_LIKELY(abci_engine_run_briefs(&comm->engine, &brief, 1) == 1))
        return ABC_OK;
    q.heap = q.persistent = false;
    int status = abci_prepare(comm, c, &q);
    return status == ABC_OK ? abci_report(&q, abci_engine_run(&comm->engine, &q)) : status;
}

/* ---- The common calls ---- */

static abc_call describe(abc_collective which, const void *in, void *out, uint64_t count, abc_type type, int peer, int tag)
{
    return (abc_call){.size = sizeof(abc_call),
                      .collective = which,
                      .in = in,
                      .out = out,
                      .count = count,
                      .type = type,
                      .root = peer,
                      .tag = tag};
}

ABC_API int abc_send(const void *in, uint64_t count, abc_type type, int dest, int tag, abc_comm *comm)
{
    abc_call c = describe(ABC_SEND, in, NULL, count, type, dest, tag);
    return abc_run(comm, &c);
}

ABC_API int abc_recv(void *out, uint64_t count, abc_type type, int source, int tag, abc_comm *comm, abc_received *received)
{
    abc_call c = describe(ABC_RECV, NULL, out, count, type, source, tag);
    c.received = received;
    return abc_run(comm, &c);
}

ABC_API int abc_send_start(const void *in, uint64_t count, abc_type type, int dest, int tag, abc_comm *comm, abc_request **req)
{
    abc_call c = describe(ABC_SEND, in, NULL, count, type, dest, tag);
    return abc_start(comm, &c, req);
}

ABC_API int abc_recv_start(void *out, uint64_t count, abc_type type, int source, int tag, abc_comm *comm, abc_received *received,
                           abc_request **req)
{
    abc_call c = describe(ABC_RECV, NULL, out, count, type, source, tag);
    c.received = received;
    return abc_start(comm, &c, req);
}

static bool overlap(const char *in, uint64_t in_bytes, const char *out, uint64_t out_bytes)
{
    return in_bytes && out_bytes && in < out + out_bytes && out < in + in_bytes;
}

/* How many of the two are over: the send may be before the receive is. */
static int exchange_briefly(abc_comm *comm, const abc_call *send, const abc_call *receive)
{
    struct abci_brief both[2];
    if (!comm || !is_brief(comm, send, &both[0]) || !is_brief(comm, receive, &both[1]) ||
        overlap(both[0].in, both[0].count * both[0].element, both[1].out, both[1].count * both[1].element))
        return 0;
    return abci_engine_run_briefs(&comm->engine, both, 2);
}

static int refuse_overlap(const abc_call *s, const abc_call *r)
{
    return abci_error(ABC_ERR_ARGUMENT, "input and output of a sendrecv overlap (input %p, %llu bytes; output %p, %llu bytes)",
                      s->in, (unsigned long long)(s->count * abc_type_size(s->type)), r->out,
                      (unsigned long long)(r->count * abc_type_size(r->type)));
}

/* Inside a group: two calls of it. */
static int sendrecv_later(struct abci_group *group, abc_comm *comm, const abc_call *s, const abc_call *r)
{
    if (overlap(s->in, s->count * abc_type_size(s->type), r->out, r->count * abc_type_size(r->type)))
        return abci_group_refuse(group, refuse_overlap(s, r));
    int status = abc_run(comm, r);
    return status == ABC_OK ? abc_run(comm, s) : status;
}

/* Both requests are on the stack: the receive is started, the send run, and the receive waited for whatever the send's status. */
/* NOLINTNEXTLINE(readability-function-size): both messages have all of these */
ABC_API int abc_sendrecv(const void *in, uint64_t in_count, int dest, int send_tag, void *out, uint64_t out_count, int source,
                         int recv_tag, abc_type type, abc_comm *comm, abc_received *received)
{
    struct abc_request send, receive;
    struct abci_group *group = abci_group_here();
    abc_call s = describe(ABC_SEND, in, NULL, in_count, type, dest, send_tag);
    abc_call r = describe(ABC_RECV, NULL, out, out_count, type, source, recv_tag);
    r.received = received;
    if (ABCI_UNLIKELY(group != NULL))
        return sendrecv_later(group, comm, &s, &r);
    int over = exchange_briefly(comm, &s, &r);
    if (over)
        return over == 2 ? ABC_OK : abci_message_run(comm, &r);
    send.heap = send.persistent = receive.heap = receive.persistent = false;
    int status = abci_prepare(comm, &s, &send);
    if (status == ABC_OK)
        status = abci_prepare(comm, &r, &receive);
    if (status != ABC_OK)
        return status;
    if (overlap(send.in, send.mail.bytes, receive.out, receive.mail.bytes))
        return refuse_overlap(&s, &r);
    abci_engine_start(&comm->engine, &receive);
    status = abci_engine_run(&comm->engine, &send);
    int second = abci_engine_wait(&comm->engine, &receive);
    return status != ABC_OK ? abci_report(&send, status) : abci_report(&receive, second);
}
