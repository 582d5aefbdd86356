#!/usr/bin/env python3
"""The program of a horovodrun job: the ranks sum up their ranks plus one, by MPI or, below --gloo, by TCP.

--fail RANK   that rank exits with status 3 before the sum; the others keep waiting for it
--train DIR   run until SIGTERM, then write DIR/saved-RANK after two seconds, and exit with 0
"""

import argparse
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request

SAVING = 2  # seconds; longer than Open MPI's default between TERM and KILL


class MPI:
    def __init__(self):
        from mpi4py import MPI as mpi

        self.comm = mpi.COMM_WORLD
        self.rank, self.size = self.comm.rank, self.comm.size

    def exchange(self, value):
        return self.comm.allgather(value)


class Gloo:
    """A ring over TCP on the launcher's interface. The launcher's rendezvous server tells the ranks their addresses."""

    def __init__(self):
        self.rank, self.size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
        self.server = "http://{HOROVOD_GLOO_RENDEZVOUS_ADDR}:{HOROVOD_GLOO_RENDEZVOUS_PORT}/global/".format(**os.environ)
        from horovod.runner import network

        mine = network.interfaces()[os.environ["HOROVOD_GLOO_IFACE"]]
        with socket.create_server((mine, 0)) as listener:
            address = f"{mine}:{listener.getsockname()[1]}"
            urllib.request.urlopen(urllib.request.Request(self.server + str(self.rank), address.encode(), method="PUT"))
            host, port = self.address_of((self.rank + 1) % self.size).split(":")
            self.following = socket.create_connection((host, int(port)))
            self.previous = listener.accept()[0].makefile("r", encoding="utf-8")

    def address_of(self, rank):
        """Polls until the rank has stored its address, like Gloo, because the server does not wait."""
        while True:
            try:
                with urllib.request.urlopen(self.server + str(rank)) as answer:
                    return answer.read().decode()
            except urllib.error.HTTPError as e:
                if e.code != 404:
                    raise
                time.sleep(0.01)

    def exchange(self, value):
        values, passed = [value], value
        for _ in range(self.size - 1):
            try:
                self.following.sendall(f"{passed}\n".encode())
                line = self.previous.readline()
            except ConnectionError:
                line = ""
            if not line:
                signal.pause()  # wait for the launcher's signal: a rank that fails now could count as the first one
            passed = type(value)(line.rstrip("\n"))
            values.append(passed)
        return values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fail", type=int, metavar="RANK")
    parser.add_argument("--train", metavar="DIR")
    args = parser.parse_args()

    world = Gloo() if os.environ.get("HOROVOD_CONTROLLER") == "gloo" else MPI()
    if world.rank == args.fail:
        print("this rank fails", file=sys.stderr, flush=True)
        os._exit(3)
    # Install the handler before the sum, so that each rank saves its work once rank 0 has printed the line below.
    stopping = []
    if args.train:
        signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))
    total = sum(world.exchange(world.rank + 1))
    hosts = sorted(set(world.exchange(socket.gethostname())))
    if world.rank == 0:
        print(f"OK size={world.size} sum={total} hosts={','.join(hosts)}", flush=True)
    if args.train:
        while not stopping:
            signal.pause()
        time.sleep(SAVING)
        with open(os.path.join(args.train, f"saved-{world.rank}"), "w", encoding="utf-8"):
            pass
        os._exit(0)


if __name__ == "__main__":
    main()
