"""Stands in for a PyTorch program, like init_process_group("env://"): rank 0 listens on MASTER_PORT, the others connect
to MASTER_ADDR, and every rank gets the sum of RANK+1 over WORLD_SIZE ranks.

--fail RANK       that rank exits with status 3 before the sum
--sleep SECONDS   ranks run for this long after the sum"""
import argparse, os, socket, sys, time

p = argparse.ArgumentParser()
p.add_argument("--fail", type=int)
p.add_argument("--sleep", type=float, default=0)
a = p.parse_args()
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def connect():
    while True:  # PyTorch waits for rank 0 as well
        try:
            return socket.create_connection(master, timeout=5)
        except OSError:
            time.sleep(0.05)


if rank == a.fail:
    sys.exit(3)
if rank == 0:
    with socket.create_server(("", master[1])) as listener:
        others = [listener.accept()[0].makefile("rw") for _ in range(size - 1)]
    total = 1 + sum(int(s.readline()) for s in others)
    for s in others:
        print(total, file=s, flush=True)
else:
    s = connect()
    s.settimeout(None)
    s = s.makefile("rw")
    print(rank + 1, file=s, flush=True)
    total = int(s.readline())
print(f"rank {rank} of {size}: sum = {total}", flush=True)
time.sleep(a.sleep)
