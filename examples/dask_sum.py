#!/usr/bin/env python3
"""A driver of a Dask cluster: adds up squares on its workers, once all have come.

    paiinit --exec leader --template --ready tcp:{port} --first 'dask scheduler --port={port}' -- python3 dask_sum.py

It prints one line with the sum and the number of hosts that took part, and ends with status 1 where the sum is wrong.
"""

import argparse
import os
import socket
import sys
import time

from distributed import Client

NUMBERS = 1000


def main():
    parser = argparse.ArgumentParser(description="add up squares on the workers of a Dask cluster")
    parser.add_argument("--sleep", type=float, default=0, metavar="SECONDS", help="go on for this long after the sum")
    args = parser.parse_args()
    with Client(f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}") as client:
        client.wait_for_workers(int(os.environ["PAIINIT_SIZE"]) - 1)  # rank 0 has none
        squares = client.map(lambda n: n * n, range(NUMBERS))
        total = client.submit(sum, squares).result()
        hosts = set(client.run(socket.gethostname).values())
        want = (NUMBERS - 1) * NUMBERS * (2 * NUMBERS - 1) // 6
        print(f"sum of {NUMBERS} squares = {total}, expected {want}, on {len(hosts)} hosts", flush=True)
        time.sleep(args.sleep)
    return total != want


if __name__ == "__main__":
    sys.exit(main())
