#!/usr/bin/env python3
"""figures_python.py - allreduces of 8 bytes in a row from Python, to be compared with the same in C (`loop` of figures.c). Both ranks of a
job of `abcomm run`; rank 0 prints a line as figures.c does.

Usage: abcomm run -n 2 -- python figures_python.py COUNT
"""
import sys
import time

import abcomm
import numpy

count = int(sys.argv[1])
with abcomm.Communicator() as comm:
    data, result = numpy.ones(2, numpy.float32), numpy.empty(2, numpy.float32)
    for _ in range(count // 10):
        comm.allreduce(data, result)
    comm.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        comm.allreduce(data, result)
    took = (time.perf_counter() - begin) / count * 1e6
    assert (result == comm.size).all(), result
    comm.barrier()
    if comm.rank == 0:
        print(f"python-loop-8B-{comm.size} {took:.4g} us - ok", flush=True)
