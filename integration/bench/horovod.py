"""The training that bench measures. Rank 0 prints when its first allreduce has completed, and who took part."""

import time

begun = time.time()  # before the imports, which take most of the time

import json
import socket

import horovod.torch as hvd
import torch

hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
done = time.time()
ranks = hvd.allgather_object((socket.gethostname(), begun))
if hvd.rank() == 0:
    hosts, begins = zip(*ranks)
    print(json.dumps({"begun": max(begins), "done": done, "sum": total, "hosts": hosts}), flush=True)
