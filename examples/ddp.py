#!/usr/bin/env python3
"""A small model, trained by PyTorch's DistributedDataParallel on every rank with its own data.

    paiinit --exec all -- torchrun examples/ddp.py       # one process for each slot of each rank
    paiinit --exec all -- python3 examples/ddp.py        # one process for each rank
    paiinit -- mpirun python3 examples/ddp.py --backend mpi

Every process prints one line with the loss over all data, which is the same on all of them, and ends with status 1 where
the model has not learnt anything.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, SAMPLES, FEATURES = 20, 32, 4


def main():
    parser = argparse.ArgumentParser(description="train a small model on all ranks")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--fail", type=int, default=-1, metavar="RANK", help="that rank exits with status 3 after the first step")
    parser.add_argument("--sleep", type=float, default=0, metavar="SECONDS", help="go on for this long after the training")
    parser.add_argument("--local_rank", "--local-rank", type=int, help="torch.distributed.launch passes it")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group(args.backend)
    losses = train(args.fail)

    # We write each line by one call, because the processes share the pipe.
    sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()}: loss {losses[0]:.6f} -> {losses[-1]:.6f}\n")
    sys.stdout.flush()
    time.sleep(args.sleep)
    dist.barrier()
    # Destroying the group waits for its threads, and a thread may still hold a tensor that it has sent. If that is the
    # last reference to a tensor of Python, the thread needs the interpreter, which waits for the thread or is ending: the
    # process hangs or aborts (pytorch/pytorch#190489). So we have dropped the model, which refers to the group, and still
    # keep losses.
    dist.destroy_process_group()
    return 0 if losses[-1] < losses[0] / 2 else 1


def train(fail):
    """Returns the loss of every step, over all data."""
    rank, size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(rank)
    x = torch.randn(SAMPLES, FEATURES)
    y = x @ torch.arange(1.0, FEATURES + 1).unsqueeze(1)  # what the model must learn

    # DistributedDataParallel first sends the parameters and buffers of rank 0 to all other ranks.
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = torch.zeros(STEPS)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()  # the gradients are averaged over all ranks
        optimizer.step()
        losses[step] = loss.detach()
        if rank == fail and step == 0:
            os._exit(3)
    dist.all_reduce(losses)
    losses /= size
    return losses


if __name__ == "__main__":
    sys.exit(main())
