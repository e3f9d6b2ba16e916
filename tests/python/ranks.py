"""ranks.py - what the ranks of a job do in the tests of test_jobs.py. Usage, under `abcomm run`: python ranks.py CASE

Each case is a function of the communicator, or of nothing where it makes its own; an exception says what is wrong.
"""
import asyncio
import os
import sys
import threading

import numpy as np

import abcomm


def collectives(comm):
    """Every collective, in place and not, ordinary and arena memory, against NumPy."""
    rng = np.random.default_rng(7)
    for count in (0, 1, 2, 1000, 200_000):
        whole = rng.integers(-50, 50, (comm.size, comm.size * count)).astype("f4")
        for make in (np.empty, abcomm.empty):
            mine = make(comm.size * count, "float32")
            mine[:] = whole[comm.rank]
            out = make(comm.size * count, "float32")
            assert comm.allreduce(mine, out) is out
            np.testing.assert_array_equal(out, whole.sum(0))
            comm.allreduce(mine, out, "max")
            np.testing.assert_array_equal(out, whole.max(0))
            block = make(count, "float32")
            comm.reduce_scatter(mine, block)
            np.testing.assert_array_equal(block, whole.sum(0)[comm.rank * count:][:count])
            comm.allgather(block, out)
            np.testing.assert_array_equal(out, whole.sum(0))
            out[:] = -1
            out[comm.rank * count:][:count] = comm.rank
            comm.allgather(None, out)
            np.testing.assert_array_equal(out, np.repeat(np.arange(comm.size), count))
            root = comm.size - 1
            comm.broadcast(mine, root=root)
            np.testing.assert_array_equal(mine, whole[root])
    comm.barrier()


def rooted(comm):
    """Collectives with a root and prefixes, in place and not, against NumPy."""
    rank, size = comm.rank, comm.size
    for count in (0, 1, 1000, 50_000):
        whole = np.arange(size * size * count, dtype="f4").reshape(size, size * count) % 61
        mine, out, block = whole[rank].copy(), np.empty(size * count, "f4"), np.empty(count, "f4")
        for root in range(size):
            here = rank == root
            assert comm.reduce(mine, out if here else None, root=root) is (out if here else None)
            assert not here or (out == whole.sum(0)).all()
            inplace = mine.copy()
            comm.reduce(inplace, op="max", root=root)
            assert (inplace == (whole.max(0) if here else mine)).all()
            assert comm.gather(mine[:count], out, root) is (out if here else None)
            assert not here or (out.reshape(size, count) == whole[:, :count]).all()
            comm.gather(None if here else mine[:count], out, root)
            assert comm.scatter(mine if here else None, block, root=root) is block
            assert (block == whole[root][rank * count:][:count]).all()
        assert comm.alltoall(mine, out) is out
        assert (out.reshape(size, count) == whole.reshape(size, size, count)[:, rank]).all()
        assert (comm.alltoall(mine.copy()) == out).all()
        assert (comm.scan(mine, out) == whole[:rank + 1].sum(0)).all()
        out[:] = 5
        comm.exscan_start(mine, out).wait()
        assert (out == (whole[:rank].sum(0) if rank else 5)).all()


def vectors(comm):
    """Blocks of different sizes, zero among them, with gaps and without, in place and not, in all three forms, against NumPy."""
    rank, size = comm.rank, comm.size
    rng = np.random.default_rng(11)
    for scale in (0, 1, 30, 20_000):
        sizes = rng.integers(0, scale + 1, (size, size))  # from whom, to whom
        whole = [[np.full(sizes[a, b], 10 * a + b, "i4") for b in range(size)] for a in range(size)]
        sent, got = sizes[rank], sizes[:, rank]
        mine = np.concatenate([*whole[rank], np.full(3, -1, "i4")])  # longer than the counts name
        wanted = np.concatenate([whole[a][rank] for a in range(size)])
        assert comm.alltoallv(mine, out := np.full(wanted.size + 2, 7, "i4"), sent, got.tolist()) is out
        assert (out[:-2] == wanted).all() and (out[-2:] == 7).all()
        square = np.maximum(sizes, sizes.T)  # in place each pair agrees on one size
        offsets = [5 + sum(square[rank][:b]) + 2 * b for b in range(size)]
        out = np.full(offsets[-1] + square[rank][-1], -3, "i4")
        for b in range(size):
            out[offsets[b]:][:square[rank][b]] = 10 * rank + b
        comm.alltoallv_start(None, out, None, square[rank], out_offsets=offsets).wait()
        assert all((out[offsets[b]:][:square[rank][b]] == 10 * b + rank).all() for b in range(size)) and (out[:5] == -3).all()
        counts, blocks = sizes[0], whole[0]
        alone, ends = blocks[rank], np.cumsum(sizes[0])
        gathered = np.concatenate(blocks)
        assert (comm.allgatherv(alone, np.zeros(gathered.size, "i4"), counts) == gathered).all()
        backwards = gathered.size - ends  # offsets that descend
        request = comm.allgatherv_request(alone, out := np.zeros(gathered.size, "i4"), counts, backwards)
        for _ in range(3):
            assert (request.start().wait() == np.concatenate(blocks[::-1])).all()
        out[:] = -1
        out[ends[rank] - counts[rank]:ends[rank]] = alone
        assert (comm.allgatherv(None, out, counts) == gathered).all()
        summed = np.empty(counts[rank], "i4")
        assert (comm.reduce_scatterv(gathered, summed, counts) == size * alone).all()
        assert (comm.reduce_scatterv_start(gathered, summed, counts, "max").wait() == alone).all()
        for root in range(size):
            here = (np.full(gathered.size, -1, "i4"), counts) if rank == root else ()
            result = comm.gatherv(alone, *here, root=root)
            assert result is None if rank != root else (result == gathered).all()
            if rank == root:
                result[:ends[rank] - counts[rank]] = -1
            result = comm.gatherv_request(None if rank == root else alone, *here, root=root).start().wait()
            assert result is None if rank != root else (result == gathered).all()
            summed[:] = -1
            given = (gathered, summed, counts) if rank == root else (None, summed)
            assert (comm.scatterv(*given, root=root) == alone).all()
            assert (comm.scatterv_request(*given, root=root).start().wait() == alone).all()
    try:
        got = [3 - (r == (rank + 1) % size) for r in range(size)]
        comm.alltoallv(np.zeros(size * 3, "f4"), np.zeros(size * 3, "f4"), [3] * size, got)
        raise AssertionError("counts that disagree were taken")
    except abcomm.MismatchError as error:
        assert "3" in str(error) and "2" in str(error), error


def groups(comm):
    """Calls as one: sends before receives, many short sums, several communicators in any order, requests, and what goes wrong."""
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (1, 300_000):
        x, y, z = np.full(count, rank, "f4"), np.empty(count, "f4"), np.empty(count, "f4")
        with comm.group():
            comm.send(x, right, 1)
            assert comm.recv(y, left, 1) is None and comm.sendrecv(x, left, z, right, 2, 2) is None
        assert (y == left).all() and (z == right).all()
    arrays = [np.full(i, rank + i, "f4") for i in range(60)]
    sums = [np.empty_like(a) for a in arrays]
    with abcomm.group():
        with comm.group():
            assert all(comm.allreduce(a, b) is b for a, b in zip(arrays, sums))
        late = comm.allreduce_start(np.full(3, rank, "f8"))
        again = comm.allreduce_request(np.full(2, 2, "i4"), out := np.empty(2, "i4")).start()
        for call in (late.wait, late.test, comm.close, lambda: comm.split(0)):
            try:
                call()
                raise AssertionError(call)
            except abcomm.StateError as error:
                assert "group" in str(error), error
        comm.allgather(np.full(2, rank, "i8"), everybody := np.empty(2 * size, "i8"))
    total = sum(range(size))
    assert all((b == total + size * i).all() for i, b in enumerate(sums)) and (everybody == np.repeat(np.arange(size), 2)).all()
    assert (late.wait() == total).all() and again.wait() is out and (again.start().wait() == 2 * size).all()
    other = comm.split(0)
    with comm.group():
        for c in (comm, other) if rank % 2 else (other, comm):
            c.allreduce(arrays[50], sums[50])
    refused, told = None, []
    for wrong in (lambda: comm.allreduce(np.ones(3, "f4"), op="most"), lambda: comm.run("allreduce", (0, 3, "f32"))):
        try:
            with comm.group():
                comm.barrier()
                refused = comm.barrier_start(callback=told.append)
                wrong()
        except abcomm.ArgumentError:
            pass
        try:
            refused.wait()
            raise AssertionError("it was started")
        except abcomm.StateError as error:
            assert "never started" in str(error) and isinstance(told.pop(), abcomm.StateError)
    try:
        with comm.group():
            try:
                comm.run("allreduce", (0, 3, "f32"))
            except abcomm.ArgumentError:
                pass
            comm.barrier()
        raise AssertionError("a refused call was forgotten")
    except abcomm.ArgumentError as error:
        assert "call 1 of the group" in str(error), error
    comm.barrier()
    other.close()


def messages(comm):
    """By source and tag, any of both, shorter than the array, started, exchanged, refused."""
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in (0, 1, 1000, 100_000):
        x, y = np.full(count, rank, "f4"), np.empty(count + 1, "f4")
        got = comm.sendrecv(x, right, y, left, 3, 3)
        assert got == (left, 3, count) and (y[:count] == left).all() and comm.sendrecv(x, left, y, right).tag == 0
        wait = comm.recv_request(y).start()
        comm.send_start(x, right, 9).wait()
        assert wait.wait() == wait.wait() == (left, 9, count) and isinstance(wait.wait(), abcomm.Received)
        comm.barrier()
    if rank == 0:
        for _ in range(2 * (size - 1)):
            got = comm.recv(y, abcomm.ANY_SOURCE, 8)
            assert got.tag == 8 and y[0] == got.source == got.count
    else:
        comm.send(np.full(rank, rank, "f4"), 0, tag=8)
        comm.send_request(np.full(rank, rank, "f4"), 0, tag=8).start().wait()
    wait = comm.recv_start(y, rank)
    comm.send(np.ones(3, "f4"), rank, 2)
    assert wait.wait() == (rank, 2, 3)
    comm.send(np.ones(3, "f4"), rank, 1)
    try:
        comm.recv(np.ones(2, "f4"), rank)
        raise AssertionError("a long message was not refused")
    except abcomm.MismatchError:
        comm.barrier()
    for wrong in (lambda: comm.send(x, size), lambda: comm.send(x, abcomm.ANY_SOURCE), lambda: comm.recv(y, size),
                  lambda: comm.sendrecv(x, right, y, -2), lambda: comm.send(x, right, -1)):
        try:
            wrong()
        except abcomm.ArgumentError:
            continue
        raise AssertionError("a wrong rank or tag was taken")


def types(comm):
    """Every element type that the library and NumPy share, summed."""
    import ml_dtypes

    for name, (_, size, dtype) in abcomm.types.items():
        if dtype is None or "," in dtype:
            continue  # pairs have no sum
        element = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
        assert element.itemsize == size, name
        x = np.ones(5, element)
        y = np.zeros(5, element)
        comm.allreduce(x, y)
        assert y.dtype == element and (y.astype("c16") == (1 if name == "bool" else comm.size)).all(), (name, y)
        z = abcomm.ones(5, name)
        assert z.dtype == element
        comm.allreduce(z)
        assert (z == y).all(), name


def operations(comm):
    """Every operation that the library names, on integers and floats, where it has it."""
    n = comm.size
    want = {"sum": n * (n + 1) // 2, "min": 1, "max": n, "avg": n * (n + 1) // 2 // n, "prod": int(np.prod(np.arange(1, n + 1)))}
    for op in abcomm.ops:
        x = np.full(3, comm.rank + 1, "i4")
        try:
            comm.allreduce(x, op=op)
        except abcomm.Error as error:
            assert op not in want and error.code in (-1, -13), (op, error)
            continue
        assert op not in want or (x == want[op]).all(), (op, x)
        comm.barrier()


def pairs(comm):
    """The smallest and the largest value with its place."""
    x = np.array([(comm.rank, comm.rank), (7, comm.rank)], "f4,i4")
    assert comm.allreduce(x, np.empty_like(x), "maxloc").tolist() == [(comm.size - 1, comm.size - 1), (7, 0)]
    wide = np.zeros(2, np.dtype([("value", "f8"), ("index", "i4")], align=True))
    wide["value"], wide["index"] = -comm.rank, comm.rank
    comm.allreduce(wide, op="minloc")
    assert (wide["value"] == 1 - comm.size).all() and (wide["index"] == comm.size - 1).all()


def scaled(comm):
    """Every rank's own factor, also of a dropped object whose operation is under way."""
    x, out = np.full(100, 2, "f4"), np.zeros(100, "f4")
    comm.allreduce(x, out, abcomm.ScaledSum(np.float32(comm.rank + 1)))
    assert (out == 2 * sum(range(1, comm.size + 1))).all()
    for _ in range(200):  # more than exist at a time
        request = comm.allreduce_start(x, out, abcomm.ScaledSum(np.float32(0.5)))
        request.wait()
        assert (out == comm.size).all()
    for wrong in (np.zeros(2, "f4"), np.bool_(True)):
        try:
            abcomm.ScaledSum(wrong)
        except abcomm.Error:
            continue
        raise AssertionError(wrong)


def user_operations(comm):
    """Reductions by a Python function: in rank order, of several types, in every form, dropped while under way; and one that raises."""
    import ml_dtypes

    rank, size = comm.rank, comm.size

    def after(low, high):  # x -> ax + b, one map after another: does not commute
        assert not low.flags.writeable
        high["f1"] += high["f0"] * low["f1"]
        high["f0"] *= low["f0"]

    def matrices(count):
        x = np.zeros(count, "i4,i4")
        x["f0"], x["f1"] = 2, np.arange(count) + rank
        return x

    for count in (1, 5, 3000, 200_000):
        x = matrices(count)
        want = np.zeros(count, "i4")
        for r in range(size):
            want = 2 * want + np.arange(count) + r
        got = comm.allreduce(x, op=abcomm.Operation(after))
        assert (got["f0"] == 2 ** size).all() and (got["f1"] == want).all()
    for dtype in ("f8", "i2", ml_dtypes.bfloat16, "?"):
        x = np.full(2000, rank + 1).astype(dtype)
        got = comm.allreduce_start(x, np.empty_like(x), abcomm.Operation(np.maximum, commutes=True)).wait()
        assert (got == np.array(size).astype(dtype)).all(), dtype
    first = comm.reduce(np.full(4, rank + 7, "f4"), np.empty(4, "f4"), abcomm.Operation(lambda low, high: low))
    assert (first == 7).all() if rank == 0 else first is None
    for wrong in (3, None):
        try:
            abcomm.Operation(wrong)
        except TypeError:
            continue
        raise AssertionError(wrong)
    sys.unraisablehook = lambda hook: None
    for function, words in ((lambda low, high: 1 / 0, "ZeroDivisionError"), (lambda low, high: high[:1], "keep the number")):
        part = comm.split(0)
        try:
            part.allreduce(np.ones(2000, "f4"), op=abcomm.Operation(function))
        except abcomm.AbortedError as error:
            assert words in str(error) and "operation" in str(error), error
        else:
            raise AssertionError("a function that raised gave a result")
        part.close()
    comm.barrier()


def requests(comm):
    """Started, tested, awaited, restarted, dropped; callbacks, also such as start operations."""
    x = np.full(10, comm.rank, "f8")
    total = sum(range(comm.size))
    out = np.empty_like(x)
    request = comm.allreduce_start(x, out)
    while not request.test():
        pass
    assert request.wait() is out and not request.active and (out == total).all()

    persistent = comm.allreduce_request(x, out)
    for step in range(20):
        x[:] = comm.rank + step
        persistent.start().wait()
        assert (out == total + step * comm.size).all()

    told, second = [], []

    def then(error):
        told.append(error)
        second.append(comm.barrier_start(callback=told.append))
        try:
            comm.barrier()
        except abcomm.StateError as refused:
            told.append(refused)

    comm.allreduce_start(x, out, callback=then).wait()
    second[0].wait()
    assert told[0] is None and isinstance(told[1], abcomm.StateError) and told[2] is None, told

    async def many():
        arrays = [np.full(1000, comm.rank + i, "f4") for i in range(5)]
        results = await asyncio.gather(*[awaited(comm.allreduce_start(a)) for a in arrays])
        for i, result in enumerate(results):
            assert result is arrays[i] and (result == total + i * comm.size).all()

    async def awaited(request):
        return await request

    asyncio.run(many())
    for _ in range(50):
        comm.allreduce_start(np.ones(5000, "f4"))  # dropped at once, with its array
    comm.barrier()


def splits(comm):
    half = comm.split(comm.rank % 2, -comm.rank)
    members = [r for r in range(comm.size) if r % 2 == comm.rank % 2]
    assert half.size == len(members) and half.rank == members[::-1].index(comm.rank)
    x = np.full(4, comm.rank, "i4")
    assert (half.allreduce(x) == sum(members)).all()
    half.close()
    assert comm.split(-1) is None
    comm.barrier()


def several_threads(comm):
    """Threads of one rank wait at once: whoever waits lets the others run."""
    groups = [comm.split(0) for _ in range(3)]

    def work(group):
        for step in range(100):
            assert group.allreduce(np.array([step], "f4"))[0] == step * comm.size

    threads = [threading.Thread(target=work, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def mismatch(comm):
    try:
        comm.allreduce(np.zeros(4 + comm.rank, "f4"))
    except abcomm.MismatchError as error:
        assert "allreduce" in str(error) and comm.status != "ABC_OK" and comm.error
    else:
        raise AssertionError("a mismatch was not told")


def late(comm):
    """A rank that does not come: the others get a timeout, which Python's own class catches too."""
    if comm.rank == 0:
        try:
            comm.barrier(timeout=0.3)
        except TimeoutError as error:
            assert isinstance(error, abcomm.TimeoutError) and isinstance(error, abcomm.Error)
            return
        raise AssertionError("no timeout")
    try:
        import time
        time.sleep(1)
        comm.barrier()
    except abcomm.Error:
        return
    raise AssertionError("the failure was not told")


def forked(comm):
    """A forked child may not use its parent's communicator, and does it no harm."""
    memory = abcomm.ones(100)
    request = comm.allreduce_request(memory)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            comm.barrier()
        except abcomm.HandleError:
            code = 0
        del request, memory
        comm.close()
        sys.exit(code)  # with the interpreter's whole end
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (request.start().wait() == comm.size).all()


def exit_without_close():
    """The interpreter ends with communicators, requests, arrays and a progress thread alive."""
    global kept
    comm = abcomm.Communicator(progress_thread=True)
    x = abcomm.ones(100_000)
    kept = comm, x, [comm.allreduce_start(np.ones(1000, "f4"), callback=lambda error: None) for _ in range(10)], comm.split(0)


def exit_while_a_thread_waits():
    """A daemon thread waits for a peer that does not come; the end of the interpreter does not wait for it long."""
    comm = abcomm.Communicator()
    if comm.rank == 0:
        threading.Thread(target=comm.barrier, daemon=True).start()
    comm.allreduce_start(np.ones(4, "f4"))
    print("ending", flush=True)


def raising():
    """An exception inside the block of one rank ends the others soon."""
    try:
        with abcomm.Communicator() as comm:
            if comm.rank == 1:
                raise KeyError("broken data")
            comm.barrier()
    except KeyError:
        pass
    except abcomm.AbortedError as error:
        assert "broken data" in str(error), error


def killed(comm):
    """A peer that dies is told on all ranks."""
    if comm.rank == comm.size - 1:
        os.kill(os.getpid(), 9)
    try:
        comm.barrier()
    except ConnectionError as error:
        assert isinstance(error, abcomm.PeerError) and f"rank {comm.size - 1}" in str(error)
        print(f"rank {comm.rank} was told", flush=True)


def overhead(comm):
    """Seconds of an allreduce of 8 bytes, for the figure in docs/python.md."""
    import time
    x, y = np.ones(2, "f4"), np.ones(2, "f4")
    best = []
    raw_x, raw_y = (x.ctypes.data, 2, 0), (y.ctypes.data, 2, 0)
    for call in (lambda: comm.allreduce(x, y), lambda: comm.run(0, raw_x, raw_y)):
        times = []
        for _ in range(20):
            comm.barrier()
            start = time.perf_counter()
            for _ in range(2000):
                call()
            times.append((time.perf_counter() - start) / 2000 * 1e6)
        best.append(sorted(times)[len(times) // 4])
    if comm.rank == 0:
        print("allreduce of 8 bytes: arrays %.2f us, raw %.2f us" % tuple(best))


if __name__ == "__main__":
    case = globals()[sys.argv[1]]
    if case.__code__.co_argcount:
        with abcomm.Communicator() as communicator:
            case(communicator)
    else:
        case()
