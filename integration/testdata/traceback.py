# Rank 2 of an MPI job fails.
import os


def step(n):
    raise ValueError(f"loss is NaN at step {n}")


if os.environ["OMPI_COMM_WORLD_RANK"] == "2":
    step(17)
