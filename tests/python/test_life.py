"""test_life.py - communicators and requests from birth to end, in one process: ranks are threads, or there is one."""
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest

import abcomm
from conftest import Board, threads


def test_threads_as_ranks():
    def work(comm):
        return comm.allreduce(np.full(1000, comm.rank + 1, "f4"))[0]

    assert threads(3, work) == [6, 6, 6]


def test_exchange_failures():
    class Broken(Board):
        def wait(self, key, timeout):
            raise OSError("the store is gone")

    with pytest.raises(abcomm.Error) as caught:
        abcomm.Communicator(0, 2, exchange=Broken(), connect_timeout=2)
    assert "the store is gone" in str(caught.value.__cause__)
    with pytest.raises(abcomm.Error):
        abcomm.Communicator(0, 2, exchange=object(), connect_timeout=2)
    with pytest.raises(TimeoutError):
        abcomm.Communicator(0, 2, exchange=Board(), connect_timeout=0.2)


@pytest.mark.parametrize("arguments, error", [
    (dict(rank=0, size=1, key=b"short"), abcomm.Error), (dict(rank=2, size=2, address="127.0.0.1:1"), abcomm.ArgumentError),
    (dict(rank=0, size=2, address="nonsense"), abcomm.Error), (dict(rank=0, size=2, address="127.0.0.1:0x"), abcomm.Error),
    (dict(rank="a"), TypeError)])
def test_bad_creation(arguments, error):
    with pytest.raises(error):
        abcomm.Communicator(**arguments)


def test_peers_that_do_not_come():
    with pytest.raises(TimeoutError, match="rank"):
        abcomm.Communicator(0, 2, "127.0.0.1:47391", connect_timeout=0.3)


def test_closed(solo):
    request = solo.allreduce_request(np.ones(2, "f4"))
    solo.close()
    solo.close()
    assert solo.closed and "closed" in repr(solo)
    for call in (solo.barrier, solo.abort, request.start, request.wait, request.test, lambda: solo.split(0)):
        with pytest.raises(abcomm.HandleError, match="closed"):
            call()
    assert solo.status == "ABC_ERR_HANDLE" and solo.error == "" and not request.active


def test_close_completes_what_is_in_flight():
    def work(comm):
        arrays = [np.full(100_000, i, "f4") for i in range(5)]
        for x in arrays:
            comm.allreduce_start(x)
        comm.close()
        return [x[-1] for x in arrays]

    assert threads(2, work) == [[0, 2, 4, 6, 8]] * 2


def test_request_states(solo):
    request = solo.allreduce_request(np.ones(2, "f4"))
    for call in (request.wait, request.test):
        with pytest.raises(abcomm.StateError):
            call()
    assert request.start() is request and request.communicator is solo
    request.wait()
    request.wait()
    assert request.test() and not request.active
    with pytest.raises(TypeError):
        abcomm.Request()


def test_threads_wait_for_one_request():
    def work(comm):
        request = comm.allreduce_start(np.full(3, comm.rank, "f4"))
        results = []
        waiting = [threading.Thread(target=lambda: results.append(request.wait()[0])) for _ in range(4)]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join(30)
        return results

    assert threads(2, work) == [[1] * 4] * 2


def test_close_while_another_thread_is_inside():
    def work(comm):
        if comm.rank == 1:
            ready.wait(30)
            return comm.barrier()
        waiting = threading.Thread(target=comm.barrier)
        waiting.start()
        for _ in range(2000):
            try:
                comm.close()
            except abcomm.StateError as error:
                assert "another thread" in str(error)
                break
        ready.set()
        waiting.join()

    ready = threading.Event()
    threads(2, work, progress_thread=False)


def test_abort():
    def work(comm):
        if comm.rank == 0:
            comm.abort("enough")
        for _ in range(2):
            with pytest.raises(abcomm.AbortedError, match="enough"):
                comm.allreduce(np.ones(3, "f4"))
        assert comm.status == "ABC_ERR_ABORTED" and "enough" in comm.error
        with pytest.raises(abcomm.AbortedError):
            comm.allreduce_start(np.ones(3, "f4")).wait()

    threads(2, work)


def test_callback_is_told_of_failures():
    def work(comm):
        told = []
        request = comm.barrier_start(callback=told.append) if comm.rank == 0 else None
        if comm.rank == 1:
            comm.abort("over")
            return
        with pytest.raises(abcomm.AbortedError):
            request.wait()
        assert isinstance(told[0], abcomm.AbortedError) and "over" in str(told[0])

    threads(2, work)


def test_completions_tell_of_requests_that_are_over():
    added = threading.Event()

    def work(comm):
        done = abcomm.Completions()
        requests = [comm.allreduce_start(np.ones(1000, "f4")) for _ in range(5)]
        for number, request in enumerate(requests):
            done.add(request, number)
        assert sorted(done.take(30) for _ in requests) == [0, 1, 2, 3, 4]
        done.add(requests[0], "again")  # over already
        done.put("put")
        assert [done.take(), done.take()] == ["again", "put"]
        with pytest.raises(TimeoutError, match="within 20 ms"):
            done.take(0.02)
        late = comm.allreduce_request(np.ones(3, "f4"))
        if comm.rank == 0:
            late.start()
            done.add(late, "late")
            with pytest.raises(abcomm.StateError, match="already"):
                done.add(late, "twice")
            added.set()
        else:
            assert added.wait(30)  # else the operation may be over before it is added
            late.start()
        comm.barrier()
        if comm.rank == 0:
            assert done.take(30) == "late"
        late.wait()
        return True

    assert threads(2, work, progress_thread=True) == [True, True]
    with pytest.raises(abcomm.ArgumentTypeError, match="not a request"):
        abcomm.Completions().add(None, 1)


def test_address_with_an_owner(solo):
    class Owner:
        pass

    x, owner = np.ones(3, "f4"), Owner()
    gone = weakref.ref(owner)
    request = solo.allreduce_request((x.ctypes.data, 3, "f32", owner))
    del owner
    assert gone() is not None
    del request
    assert gone() is None
    with pytest.raises(abcomm.ArgumentTypeError, match="tuple of 5"):
        solo.allreduce((x.ctypes.data, 3, "f32", None, None))


def test_progress_thread_runs_callbacks():
    def work(comm):
        done = threading.Event()
        where = []
        callback = lambda error: (where.append(threading.get_ident()), done.set())  # noqa: E731
        request = comm.allreduce_start(np.ones(1000, "f4"), callback=callback)
        assert done.wait(30)
        request.wait()
        return where[0]

    threads(2, work, progress_thread=True)


def test_callback_that_raises(solo, monkeypatch):
    caught = []
    monkeypatch.setattr("sys.unraisablehook", lambda hook: caught.append(str(hook.exc_value)))

    def callback(error):
        raise ValueError("in the callback")

    solo.barrier_start(callback=callback).wait()
    assert caught == ["in the callback"]


def test_cycles_are_collected(solo):
    class Holder:
        pass

    holder = Holder()
    holder.request = solo.allreduce_request(np.ones(3, "f4"), callback=lambda error: holder)
    holder.request.start().wait()
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_dropped_request_keeps_its_array():
    dropped = threading.Event()

    def work(comm):
        gone = []
        x = np.ones(200_000, "f4")
        weakref.finalize(x, gone.append, True)
        if comm.rank == 0:
            comm.allreduce_start(x)
            del x
            held = not gone
            dropped.set()
            assert held
        else:
            assert dropped.wait(30)  # else the operation may be over before its request is dropped
            comm.allreduce(x)
        comm.barrier()
        comm.barrier_start().wait()  # what is over is released by the next start
        return bool(gone)

    assert threads(2, work)[0]


def test_communicators_without_close():
    for _ in range(20):
        comm = abcomm.Communicator(0, 1)
        comm.allreduce(np.ones(3, "f4"))
    del comm
    gc.collect()


def test_errors():
    assert issubclass(abcomm.TimeoutError, (abcomm.Error, TimeoutError)) and issubclass(abcomm.PeerError, ConnectionError)
    assert issubclass(abcomm.ArgumentError, ValueError) and issubclass(abcomm.ArgumentTypeError, TypeError)
    for name in abcomm.__all__:
        kind = getattr(abcomm, name)
        if isinstance(kind, type) and issubclass(kind, abcomm.Error):
            again = pickle.loads(pickle.dumps(kind("text")))
            assert type(again) is kind and str(again) == "text" and kind.__doc__
    assert abcomm.TimeoutError.status == "ABC_ERR_TIMEOUT" and abcomm.TimeoutError.code == -8


def test_every_status_has_its_class():
    import re
    from conftest import HERE

    table = (HERE.parent.parent / "include/abcomm/status.h").read_text()
    codes = {int(code) for code in re.findall(r"X\(ERR_\w+, (-\d+),", table)}
    classes = {getattr(abcomm, name).code for name in abcomm.__all__ if name.endswith("Error") and name != "Error"}
    assert codes <= classes | {-3}
    assert abcomm.OutOfMemoryError.code == -3 and issubclass(abcomm.OutOfMemoryError, MemoryError)
