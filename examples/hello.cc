/*
 * hello.cc - the library from C++: a communicator that ends with its scope, errors as exceptions, element types from the compiler.
 * Nothing here is part of the library; copy what you like. Run: abcomm run -n 4 hello-cc
 */
#include <abcomm/abcomm.h>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

namespace
{

/* A status as an exception that carries the library's text. */
void check(int status)
{
    if (status != ABC_OK)
        throw std::runtime_error(abc_last_error());
}

struct CommEnd {
    void operator()(abc_comm *comm) const
    {
        abc_comm_destroy(comm);
    }
};
using Comm = std::unique_ptr<abc_comm, CommEnd>;

Comm create()
{
    abc_comm *comm = nullptr;
    check(abc_comm_create(nullptr, &comm));
    return Comm(comm);
}

template <typename T> struct TypeOf;
template <> struct TypeOf<float> {
    static constexpr abc_type value = ABC_F32;
};
template <> struct TypeOf<double> {
    static constexpr abc_type value = ABC_F64;
};
template <> struct TypeOf<std::int64_t> {
    static constexpr abc_type value = ABC_I64;
};

/* Sum of all ranks' vectors, in place. */
template <typename T> void allreduce(std::vector<T> &values, abc_op op, const Comm &comm)
{
    check(abc_allreduce(ABC_IN_PLACE, values.data(), values.size(), TypeOf<T>::value, op, comm.get()));
}

} // namespace

int main()
{
    try {
        Comm comm = create();
        int rank = abc_comm_rank(comm.get()), size = abc_comm_size(comm.get());
        std::vector<float> sums(3, 1.0f + static_cast<float>(rank));
        std::vector<std::int64_t> most(1, rank);
        allreduce(sums, ABC_SUM, comm);
        allreduce(most, ABC_MAX, comm);
        std::printf("rank %d of %d: the sum is %g\n", rank, size, static_cast<double>(sums[2]));
        return most[0] == size - 1 ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
