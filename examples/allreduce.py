#!/usr/bin/env python3
"""A small MPI job: every rank contributes its rank plus one, and the sum must be right.

    mpirun python3 examples/allreduce.py          # Open MPI, through mpi4py
    mpiexec.hydra python3 examples/allreduce.py   # MPICH, through libmpich

Rank 0 prints one line; the exit status is 1 where the sum is wrong. The options make the job
misbehave on purpose:

    --sleep SECONDS   go on for this long after the sum
    --fail RANK       that rank exits with status 3 before the sum; the others are left waiting for it
    --kill RANK       that rank kills itself with SIGKILL before the sum
"""

import argparse
import ctypes
import os
import signal
import socket
import sys
import time

NAME_BYTES = 256  # room for one host name


class OpenMPI:
    """MPI_COMM_WORLD by mpi4py. Debian builds its mpi4py for Open MPI only."""

    def __init__(self):
        from mpi4py import MPI  # importing it calls MPI_Init

        self.comm = MPI.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size

    def sum(self, value):
        return self.comm.allreduce(value)

    def names(self, name):
        return self.comm.gather(name)

    def finish(self):
        pass  # mpi4py calls MPI_Finalize when Python exits


class MPICH:
    """The same few calls on libmpich itself. The constants are those of MPICH's mpi.h, fixed by the MPICH ABI."""

    WORLD, CHAR, LONG, SUM = 0x44000000, 0x4C000101, 0x4C000807, 0x58000003

    def __init__(self):
        self.lib = ctypes.CDLL("libmpich.so.12", mode=ctypes.RTLD_GLOBAL)
        self.lib.MPI_Init(None, None)
        rank, size = ctypes.c_int(), ctypes.c_int()
        self.lib.MPI_Comm_rank(self.WORLD, ctypes.byref(rank))
        self.lib.MPI_Comm_size(self.WORLD, ctypes.byref(size))
        self.rank, self.size = rank.value, size.value

    def sum(self, value):
        mine, total = ctypes.c_long(value), ctypes.c_long()
        self.lib.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(total), 1, self.LONG, self.SUM, self.WORLD)
        return total.value

    def names(self, name):
        mine = ctypes.create_string_buffer(name.encode(), NAME_BYTES)
        every = ctypes.create_string_buffer(NAME_BYTES * self.size)
        self.lib.MPI_Gather(mine, NAME_BYTES, self.CHAR, every, NAME_BYTES, self.CHAR, 0, self.WORLD)
        return [every.raw[i : i + NAME_BYTES].split(b"\0")[0].decode() for i in range(0, len(every), NAME_BYTES)]

    def finish(self):
        # MPI_Finalize of MPICH 4.0 usually hangs if ranks communicate over TCP: a rank that waits in it no longer answers
        # the ranks that still disconnect from it (pmodels/mpich#6596). So we end only the connection to the launcher, by
        # the PMI-1 protocol, once no rank needs another one.
        self.lib.MPI_Barrier(self.WORLD)
        launcher = int(os.environ["PMI_FD"])
        os.write(launcher, b"cmd=finalize\n")
        os.read(launcher, 100)


def world():
    """Returns the MPI implementation that started this process: hydra sets PMI_RANK, Open MPI OMPI_COMM_WORLD_RANK."""
    if "PMI_RANK" in os.environ and "OMPI_COMM_WORLD_RANK" not in os.environ:
        return MPICH()
    return OpenMPI()


def main():
    parser = argparse.ArgumentParser(description="sum of rank+1 over all MPI ranks")
    parser.add_argument("--sleep", type=float, default=0, metavar="SECONDS")
    parser.add_argument("--fail", type=int, default=-1, metavar="RANK")
    parser.add_argument("--kill", type=int, default=-1, metavar="RANK")
    args = parser.parse_args()

    mpi = world()
    if mpi.rank == args.fail:
        os._exit(3)
    if mpi.rank == args.kill:
        os.kill(os.getpid(), signal.SIGKILL)

    total = mpi.sum(mpi.rank + 1)
    expected = mpi.size * (mpi.size + 1) // 2
    names = mpi.names(socket.gethostname())
    if mpi.rank == 0:
        hosts = sorted(set(names))
        print(
            f"allreduce over {mpi.size} ranks on {len(hosts)} hosts: "
            f"sum = {total}, expected {expected} ({', '.join(hosts)})",
            flush=True,
        )
    time.sleep(args.sleep)
    mpi.finish()
    return 0 if total == expected else 1


if __name__ == "__main__":
    sys.exit(main())
