# Rank 2 of an MPI job fails. mpirun passes its stdin on once it knows that all ranks have started: it may not name one
# that fails before that.
import os
import sys


def step(n):
    raise ValueError(f"loss is NaN at step {n}")


if os.environ["OMPI_COMM_WORLD_RANK"] == "2":
    sys.stdin.read()
    step(17)
