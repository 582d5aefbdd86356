#!/usr/bin/env python3
"""A training loop that resumes from its last checkpoint, until DIR/stop exists or after STEPS steps.

    resume.py DIR STEPS mpi|gloo

In every step the ranks compare where they are. Rank 0 writes a checkpoint after every second step. DIR/log has the lines
that integration/training describes. Each rank leaves a process of its own session and without an environment, which its
launch does not end, and counts those of earlier launches.
"""

import os
import subprocess
import sys
import time

PAUSE = 0.1  # of a step
STOP = 1 << 40


class Gloo:
    def __init__(self):
        import torch
        import torch.distributed

        torch.set_num_threads(1)
        self.dist = torch.distributed
        self.dist.init_process_group("gloo")
        self.rank, self.size = self.dist.get_rank(), self.dist.get_world_size()
        # Destroying the group may hang if a tensor that it has sent is freed meanwhile (see examples/ddp.py).
        self.total = torch.zeros(1, dtype=torch.int64)

    def sum(self, value):
        self.total[0] = value
        self.dist.all_reduce(self.total)
        return int(self.total[0])

    def finish(self):
        self.dist.barrier()
        self.dist.destroy_process_group()


def mpi():
    sys.path.insert(0, "/examples")
    import allreduce

    return allreduce.world()


def read(name, missing=b""):
    try:
        with open(name, "rb") as f:
            return f.read()
    except OSError:
        return missing


def leftovers(launch):
    """Counts the processes that earlier launches have left in this container."""
    names = [read(f"/proc/{pid}/cmdline").split(b"\0")[0].decode() for pid in os.listdir("/proc") if pid.isdigit()]
    return sum(name.startswith("left-") and name != f"left-{launch}" for name in names)


def main():
    directory, steps = sys.argv[1], int(sys.argv[2])
    launch, generation = os.environ["MASTER_PORT"], os.environ.get("PAIINIT_GENERATION", "1")
    checkpoint = os.path.join(directory, "checkpoint")
    log = os.open(os.path.join(directory, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    old = leftovers(launch)
    subprocess.Popen([f"left-{launch}", "1000"], executable="/bin/sleep", env={}, start_new_session=True,
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    world = Gloo() if sys.argv[3] == "gloo" else mpi()

    def say(what, n):
        os.write(log, f"{what} {launch} {generation} {world.rank} {n}\n".encode())

    step = int(read(checkpoint, b"0"))
    say("begin", step)
    say("old", old)
    while step < steps:
        step += 1
        say("step", step)
        time.sleep(PAUSE)
        stop = world.rank == 0 and os.path.exists(os.path.join(directory, "stop"))
        total = world.sum(step + (STOP if stop else 0))
        if total % STOP != step * world.size:
            sys.exit(f"rank {world.rank} is at step {step}, and the sum of all steps is {total % STOP}")
        if world.rank == 0 and step % 2 == 0:
            with open(f"{checkpoint}.{generation}", "w") as f:
                f.write(str(step))
            os.replace(f"{checkpoint}.{generation}", checkpoint)
            say("checkpoint", step)
        if total >= STOP:
            break
    say("done", step)
    world.finish()


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        # As python3 -m mpi4py does: else MPI_Finalize, at the exit, may wait forever for ranks that wait for this one.
        if "mpi4py" in sys.modules:
            from mpi4py.run import set_abort_status

            set_abort_status(1)
        raise
