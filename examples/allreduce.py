"""allreduce.py - the smallest program: every rank adds its number to the sum. Run: abcomm run -n 4 python allreduce.py"""
import numpy as np

import abcomm

with abcomm.Communicator() as comm:
    x = np.full(1, comm.rank + 1, "float32")
    comm.allreduce(x)
    print(f"rank {comm.rank} of {comm.size}: the sum is {x[0]:g}")
