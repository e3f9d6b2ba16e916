"""test_arrays.py - what is an array, and what is refused with which words."""
import array
import gc

import ml_dtypes
import numpy as np
import pytest

import abcomm


class ByDlpack:
    """An array that exports DLPack only."""

    def __init__(self, array, device=None, **forced):
        self.array, self.device, self.forced = array, device, forced

    def __dlpack__(self, **wanted):
        return self.array.__dlpack__(**wanted, **self.forced)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OldDlpack(ByDlpack):
    """A producer from before version 1, which knows no arguments."""

    def __dlpack__(self):
        return self.array.__dlpack__()


@pytest.mark.parametrize("make", [
    lambda x: x, memoryview, ByDlpack, OldDlpack, lambda x: (x.ctypes.data, x.size, "f32"),
    lambda x: (x.ctypes.data, x.size, x.dtype), lambda x: (x.ctypes.data, x.size, np.float32),
    lambda x: (x.ctypes.data, x.size, abcomm.types["f32"][0])])
def test_ways_in(solo, make):
    x, out = np.arange(6, dtype="f4"), np.zeros(6, "f4")
    solo.allreduce(make(x), make(out))
    np.testing.assert_array_equal(out, x)


def test_other_exporters(solo):
    out = array.array("d", [0, 0])
    solo.allreduce(array.array("d", [1, 2]), out)
    assert list(out) == [1, 2]
    memory = abcomm.Memory(8)
    assert memory.nbytes == len(memory) == 8 and memory.address % 4096 == 0
    solo.allreduce((np.ones(2, "f4")), memoryview(memory).cast("f"))
    assert list(memoryview(memory).cast("f")) == [1, 1]


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_shapes(solo, shape):
    x, out = np.full(shape, 5, "f4"), np.zeros(shape, "f4")
    assert solo.allreduce(x, out) is out
    np.testing.assert_array_equal(out, x)


def test_scalar_as_input(solo):
    out = np.zeros(1, "f4")
    solo.allreduce(np.float32(3), out)
    assert out[0] == 3


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_types_of_ml_dtypes(solo, dtype):
    x, out = np.ones((2, 3), dtype), np.zeros((2, 3), dtype)
    if not any(row[2] == np.dtype(dtype).name for row in abcomm.types.values()):
        with pytest.raises(abcomm.ArgumentTypeError, match=np.dtype(dtype).name):
            solo.allreduce(x, out)
        return
    assert solo.allreduce(x, out) is out and (out == 1).all()
    with pytest.raises(abcomm.ArgumentError, match="read-only"):
        out.flags.writeable = False
        solo.allreduce(x, out)
    with pytest.raises(abcomm.ArgumentError, match="contiguous"):
        solo.allreduce(np.ones((4, 4), dtype)[:, ::2])


def read_only(x):
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("bad, words", [
    (np.zeros(8, "f4")[::2], "contiguous"), (np.zeros((2, 3), "f4").T, "contiguous"), (np.zeros(3, "f4")[::-1], "contiguous"),
    (ByDlpack(np.zeros((2, 3), "f4").T), "contiguous"), (read_only(np.zeros(3, "f4")), "read-only"), (b"12345678", "read-only"),
    (ByDlpack(read_only(np.zeros(3, "f4"))), "read-?only"), (np.zeros(3, ">f4"), "byte order"),
    (np.zeros(3, "M8[s]"), "datetime64"),
    (np.zeros(3, object), "type O"), (np.zeros(3, "f4,i8"), "type T"), ([1.0, 2.0], "list"), (1.0, "float"), (None, "no output"),
    ((1, 2), "tuple of 2"), ((0, 1, "f99"), "f99"), ((0, 1, 99), "99"), ((0, 1, float), "float"), ((0, -1, "f32"), "negative"),
    (("a", 1, "f32"), "integer|int"), ((0, 3, "f32"), "null")])
def test_refused(solo, bad, words):
    with pytest.raises((abcomm.ArgumentError, BufferError, OverflowError, TypeError), match=words):
        solo.allreduce(bad)
    assert solo.status == "ABC_OK"
    solo.barrier()


@pytest.mark.parametrize("call, words", [
    (lambda c: c.allreduce(np.zeros(3, "f4"), np.zeros(4, "f4")), "3 elements"),
    (lambda c: c.allreduce(np.zeros(3, "f4"), np.zeros(3, "f8")), "f32.*f64"),
    (lambda c: c.allreduce(np.zeros(3, "f4"), op="most"), "'most'.*sum"),
    (lambda c: c.allreduce(np.zeros(3, "f4"), op=999), "999"),
    (lambda c: c.allreduce(np.zeros(3, "f4"), op=1.5), "1.5"),
    (lambda c: c.allreduce(np.zeros(3, "f4"), algorithm="none such"), "none such"),
    (lambda c: c.allreduce(np.zeros(3, "f4"), timeout=-1), "timeout"),
    (lambda c: c.allreduce(np.zeros(4, "f4")[:3], np.zeros(3, "f4"), tag=1 << 40), "tag"),
    (lambda c: c.broadcast(np.zeros(3, "f4"), root=5), "root 5"),
    (lambda c: c.run("allmagic"), "allmagic.*allreduce"),
    (lambda c: c.run(77), "collective"),
    (lambda c: c.run(), "collective"),
    (lambda c: c.allreduce_start(np.zeros(3, "f4"), callback=5), "callback"),
    (lambda c: c.load_plan("{"), "plan")])
def test_bad_arguments(solo, call, words):
    with pytest.raises(abcomm.Error, match=words):
        call(solo)
    solo.barrier()


FOUR = np.zeros(4, "f4")


@pytest.mark.parametrize("call, words", [
    (lambda c: c.allgatherv(FOUR, FOUR.copy(), None), "out_counts is missing"),
    (lambda c: c.allgatherv(FOUR, FOUR.copy(), [4, 1]), r"out_counts is \[4, 1\].*sequence of 1"),
    (lambda c: c.allgatherv(FOUR, FOUR.copy(), 4), "out_counts is 4.*sequence of 1"),
    (lambda c: c.allgatherv(FOUR, FOUR.copy(), ["4"]), r"out_counts\[0\] is '4'.*integer"),
    (lambda c: c.allgatherv(FOUR, FOUR.copy(), [-1]), r"out_counts\[0\] is -1.*0 or more"),
    (lambda c: c.allgatherv(FOUR, FOUR.copy(), [1 << 70]), r"out_counts\[0\] is 1180591620717411303424"),
    (lambda c: c.allgatherv(FOUR, FOUR.copy(), [2.0]), r"out_counts\[0\] is 2.0"),
    (lambda c: c.allgatherv(FOUR, FOUR.copy(), [3]), r"input has 4 elements, but out_counts\[0\] is 3"),
    (lambda c: c.allgatherv(FOUR, FOUR.copy(), [4], [1]), "rank 0 has 4 elements from 1 on, but the output has only 4"),
    (lambda c: c.allgatherv(FOUR, FOUR.copy(), [1 << 63], [1 << 63]), "output has only 4"),
    (lambda c: c.allgatherv(FOUR, np.zeros(4, "f8"), [4]), "f32.*f64"),
    (lambda c: c.reduce_scatterv(FOUR, FOUR.copy(), [5]), "5 elements from 0 on, but the input has only 4"),
    (lambda c: c.reduce_scatterv(FOUR, FOUR.copy(), [3]), r"output has 4 elements, but in_counts\[0\] is 3"),
    (lambda c: c.reduce_scatterv(None, FOUR.copy(), [4]), "no input"),
    (lambda c: c.gatherv(FOUR), "no output"), (lambda c: c.gatherv(FOUR, FOUR.copy()), "out_counts is missing"),
    (lambda c: c.scatterv(None, FOUR.copy(), [4]), "no input"),
    (lambda c: c.alltoallv(FOUR, FOUR.copy(), None, [4]), "in_counts is missing"),
    (lambda c: c.alltoallv(FOUR, FOUR.copy(), [4], [3]), "sends itself 4 elements and gets 3"),
    (lambda c: c.run("allreduce", FOUR, in_counts=[4]), "allreduce.*no in_counts"),
    (lambda c: c.run("barrier", out_offsets=[4]), "barrier.*no out_offsets")])
def test_bad_counts(solo, call, words):
    with pytest.raises(abcomm.ArgumentError, match=words):
        call(solo)
    solo.barrier()


def test_counts_are_copied(solo):
    counts = [4]
    request = solo.allgatherv_request(np.ones(4, "f4"), np.zeros(4, "f4"), counts)
    counts[0] = 1 << 40
    assert (request.start().wait() == 1).all()


def test_overlap_is_told(solo):
    x = np.zeros(10, "f4")
    with pytest.raises(abcomm.ArgumentError, match="overlap"):
        solo.allreduce(x[:6], x[2:8])


# ---- arena

def test_arena_arrays():
    x = abcomm.zeros((3, 4), "float64")
    assert x.shape == (3, 4) and x.dtype == "f8" and (x == 0).all() and x.flags.writeable
    assert (abcomm.ones(5, np.int32) == 1).all() and (abcomm.full((), 7, "f8") == 7).all()
    assert abcomm.empty(3, "bf16").dtype == ml_dtypes.bfloat16 and abcomm.empty(0).size == 0
    with pytest.raises((TypeError, ValueError)):
        abcomm.empty(3, "no type")
    with pytest.raises(abcomm.ArgumentTypeError):
        abcomm.empty(3, object)
    with pytest.raises(abcomm.ArgumentError):
        abcomm.Memory(-1)
    with pytest.raises((MemoryError, abcomm.Error)):
        abcomm.Memory(1 << 60)


def test_arena_lives_as_long_as_its_arrays():
    """A view keeps the memory; without one the same place is given out again."""
    x = abcomm.zeros(100_000)
    address, view = x.ctypes.data, x[50_000:]
    del x
    gc.collect()
    others = [abcomm.zeros(100_000) for _ in range(3)]
    assert all(other.ctypes.data != address for other in others)
    view[:] = 3
    assert all((other == 0).all() for other in others)
    del view
    gc.collect()
    assert abcomm.zeros(100_000).ctypes.data == address


def test_no_growth(solo):
    """References to arrays, results and names come back."""
    import sys

    x, y, name, counts = np.ones(10, "f4"), np.ones(10, "f4"), "one" + "shot", [1000]
    counts[0] -= 990
    bf16 = np.ones(10, ml_dtypes.bfloat16)
    things = (x, y, name, counts, bf16, solo)

    def all_ways():
        for _ in range(100):
            solo.allreduce(x, y)
            solo.allreduce(bf16)
            solo.allreduce(ByDlpack(x))
            solo.allreduce_start(x, y, callback=lambda error: None).wait()
            solo.allreduce_request(x)
            solo.alltoallv(x, y, counts, counts)
            for bad in (x[::2], 1, (1, 2, 3, 4)):
                with pytest.raises(abcomm.Error):
                    solo.allreduce(bad, y)
            try:
                solo.allreduce(x, algorithm=name)
            except abcomm.Error:
                pass

    all_ways()
    gc.collect()
    before = [sys.getrefcount(thing) for thing in things]
    all_ways()
    gc.collect()
    assert [sys.getrefcount(thing) for thing in things] == before
