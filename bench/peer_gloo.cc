/*
 * peer_gloo.cc - Gloo as the peer of bench/compare.c: its TCP transport over the loopback interface, which is all that the
 * distribution's package has. `abcomm run` starts the ranks; they meet through files in a directory that rank 0 makes and removes.
 * Of its collectives only allreduce is compared. BENCH_GLOO names the algorithm, ring or bcube.
 */
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include "peer.h"

using Algorithm = gloo::AllreduceOptions::Algorithm;

static const std::chrono::seconds patience(60);
static std::shared_ptr<gloo::rendezvous::Context> context;
static Algorithm algorithm = Algorithm::RING;
static uint32_t tag;

static void join(int rank, int nranks, const char *where)
{
    gloo::transport::tcp::attr loopback;
    loopback.hostname = "127.0.0.1";
    auto device = gloo::transport::tcp::CreateDevice(loopback);
    gloo::rendezvous::FileStore store(where);
    context = std::make_shared<gloo::rendezvous::Context>(rank, nranks);
    context->setTimeout(patience);
    context->connectFullMesh(store, device);
}

int peer_open(int *, char ***, int *rank, int *nranks)
{
    char where[64] = "";
    abc_comm *job = peer_job_open(rank, nranks);
    if (!job)
        return -1;
    if (*rank == 0) {
        std::snprintf(where, sizeof where, "/tmp/abcomm-gloo-XXXXXX");
        if (!mkdtemp(where))
            where[0] = '\0';
    }
    if (peer_job_share(where, sizeof where) != 0 || !where[0])
        return -1;
    const char *name = std::getenv("BENCH_GLOO");
    if (name && std::string(name) == "bcube")
        algorithm = Algorithm::BCUBE;
    try {
        join(*rank, *nranks, where);
    } catch (const std::exception &e) {
        std::fprintf(stderr, "compare: Gloo: %s\n", e.what());
        return -1;
    }
    int status = abc_barrier(job); /* then nobody reads the files any more */
    if (*rank == 0) {
        std::error_code ignored;
        std::filesystem::remove_all(where, ignored);
    }
    return status;
}

int peer_share(void *, void *data, size_t bytes)
{
    return peer_job_share(data, bytes);
}

int peer_has(int what, abc_type type)
{
    return what == ABC_ALLREDUCE && type == ABC_F32;
}

int peer_run(const struct peer_call *call)
{
    try {
        gloo::AllreduceOptions options(context);
        options.setAlgorithm(algorithm);
        if (call->in != call->out)
            options.setInput(static_cast<float *>(const_cast<void *>(call->in)), call->count);
        options.setOutput(static_cast<float *>(call->out), call->count);
        options.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
        options.setTag(++tag & 0xffff);
        gloo::allreduce(options);
    } catch (const std::exception &e) {
        std::fprintf(stderr, "compare: Gloo: %s\n", e.what());
        return -1;
    }
    return 0;
}

void peer_abort(void)
{
    std::_Exit(1);
}

void peer_close(void)
{
    context.reset();
    peer_job_close();
}
