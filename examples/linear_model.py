"""linear_model.py - data-parallel training in NumPy: each rank has its share of the samples, gradients are averaged while the next
one is computed. Run: abcomm run -n 2 python linear_model.py

Shown: arrays of the arena, which peers read without a copy; persistent requests; overlap of computing and communicating.
"""
import numpy as np

import abcomm

FEATURES, SAMPLES, STEPS, RATE = 64, 4096, 50, 0.5


def gradient(weights, features, targets, out):
    """Of the squared error of features @ weights."""
    np.matmul(features.T, features @ weights - targets, out=out)
    out /= len(targets)


def main(comm):
    rng = np.random.default_rng(0)  # the same problem everywhere
    truth = rng.standard_normal(FEATURES).astype("float32")
    features = rng.standard_normal((SAMPLES, FEATURES)).astype("float32")[comm.rank::comm.size]
    halves = [(part, part @ truth) for part in np.array_split(features, 2)]

    weights = np.zeros(FEATURES, "float32")
    gradients = [abcomm.empty(FEATURES) for _ in halves]
    requests = [comm.allreduce_request(g, op="avg") for g in gradients]
    for _ in range(STEPS):
        for (part, targets), g, request in zip(halves, gradients, requests):
            gradient(weights, part, targets, g)
            request.start()  # under way while the other half is computed
        for g, request in zip(gradients, requests):
            request.wait()
            weights -= RATE / len(halves) * g

    error = float(np.abs(weights - truth).max())
    low, high = comm.allreduce(weights.copy(), op="min"), comm.allreduce(weights.copy(), op="max")
    if comm.rank == 0:
        print(f"largest error {error:.1e}; {'same' if (low == high).all() else 'different'} weights on all ranks")


if __name__ == "__main__":
    with abcomm.Communicator() as communicator:
        main(communicator)
