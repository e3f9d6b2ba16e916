/*
 * peer_ccl.cc - oneCCL for CPUs as the peer of bench/compare.c. Its ranks meet over Intel MPI, whose launcher starts them. Of its
 * collectives only allreduce is compared, of types that we have, too. A call is started and waited for, which is its blocking form.
 */
#include <cstdio>
#include <cstdlib>
#include <memory>

#include <mpi.h>
#include <oneapi/ccl.hpp>

#include "peer.h"

static std::unique_ptr<ccl::communicator> comm;

static void join(int rank, int nranks)
{
    ccl::init();
    ccl::shared_ptr_class<ccl::kvs> store;
    ccl::kvs::address_type address;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
    }
    MPI_Bcast(address.data(), static_cast<int>(address.size()), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (rank != 0)
        store = ccl::create_kvs(address);
    comm = std::make_unique<ccl::communicator>(ccl::create_communicator(nranks, rank, store));
}

int peer_open(int *argc, char ***argv, int *rank, int *nranks)
{
    if (MPI_Init(argc, argv) != MPI_SUCCESS)
        return -1;
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, nranks);
    try {
        join(*rank, *nranks);
    } catch (const std::exception &e) {
        std::fprintf(stderr, "compare: oneCCL: %s\n", e.what());
        return -1;
    }
    return 0;
}

int peer_share(void *, void *data, size_t bytes)
{
    return MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, 0, MPI_COMM_WORLD) == MPI_SUCCESS ? 0 : -1;
}

static ccl::datatype type_of(abc_type type)
{
    return type == ABC_BF16  ? ccl::datatype::bfloat16
           : type == ABC_F16 ? ccl::datatype::float16
           : type == ABC_I8  ? ccl::datatype::int8
                             : ccl::datatype::float32;
}

int peer_has(int what, abc_type type)
{
    return what == ABC_ALLREDUCE && (type == ABC_F32 || type_of(type) != ccl::datatype::float32);
}

int peer_run(const struct peer_call *call)
{
    try {
        ccl::allreduce(call->in, call->out, call->count, type_of(call->type), ccl::reduction::sum, *comm).wait();
    } catch (const std::exception &e) {
        std::fprintf(stderr, "compare: oneCCL: %s\n", e.what());
        return -1;
    }
    return 0;
}

void peer_abort(void)
{
    MPI_Abort(MPI_COMM_WORLD, 1);
}

void peer_close(void)
{
    comm.reset();
    MPI_Finalize();
}
