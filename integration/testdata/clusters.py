"""Stands in for the programs of examples/: vllm, sglang, ray and its driver, torchrun, accelerate.

It takes their arguments, connects in their order, and does no work. The first argument is the program's name. Where they
differ, it does what is worse for the job: a head listens late; ray start and its tasks fail at once where the head does
not answer; the workers of a server never end by themselves, not even when they have lost the head.
"""

import os
import signal
import socket
import sys
import time

LATE = float(os.environ.get("LATE", "0.5"))  # seconds until a head listens
RANKS = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TF_CONFIG", "JAX_PROCESS_ID"]

name, args = sys.argv[1], sys.argv[2:]


def option(which, default=None):
    for i, arg in enumerate(args):
        if arg == which:
            return args[i + 1]
        if arg.startswith(which + "="):
            return arg[len(which) + 1 :]
    return default


def address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def say(text):
    print(text, flush=True)


def store(place, rank, size):
    """Meets like PyTorch's TCPStore: rank 0 listens late, and the others try until it does."""
    if rank > 0:
        for _ in range(1000):
            try:
                return [socket.create_connection(place)]
            except ConnectionRefusedError:
                time.sleep(0.05)
        sys.exit("the store does not listen")
    time.sleep(LATE)
    server = socket.create_server(place)
    return [server.accept()[0] for _ in range(size - 1)] + [server]


def serve():
    port = int(option("--port"))
    with socket.create_server(("", port)):
        say(f"serving at {port}")
        while True:
            signal.pause()


def gcs(host, port):
    """The head of a Ray cluster: counts its nodes."""
    time.sleep(LATE)
    nodes = 1
    kept = []
    with socket.create_server((host, port)) as server:
        while True:
            connection = server.accept()[0]
            if connection.recv(1) == b"n":  # a node, until the end
                kept.append(connection)
                nodes += 1
            else:
                connection.sendall(b"%d\n" % nodes)
                connection.close()


def driver():
    """Waits until the cluster on this host has all nodes; the head must listen."""
    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    while True:
        with socket.create_connection(place) as head:
            head.sendall(b"?")
            if int(head.makefile().readline()) == int(os.environ["PAIINIT_SIZE"]):
                return say("all nodes are there")
        time.sleep(0.02)


def ray():
    if "--head" in args:  # its processes go on
        if os.fork() == 0:
            os.setsid()
            gcs(option("--node-ip-address"), int(option("--port")))
        return
    try:
        head = socket.create_connection(address(option("--address")))
    except OSError as e:
        sys.exit(f"unable to connect to the head: {e}")
    head.sendall(b"n")
    say("joined")
    head.recv(1)
    sys.exit("lost the head")


def worker_of_a_server():
    say("working")
    while True:
        signal.pause()


def vllm():
    if option("--distributed-executor-backend") == "ray":
        driver()
        return serve()
    rank, size = int(option("--node-rank")), int(option("--nnodes"))
    if ("--headless" in args) != (rank > 0):
        sys.exit("all nodes but the first one need --headless")
    connections = store((option("--master-addr"), int(option("--master-port"))), rank, size)
    if rank > 0:
        worker_of_a_server()
    serve()
    del connections


def sglang():
    rank, size = int(option("--node-rank")), int(option("--nnodes"))
    connections = store(address(option("--dist-init-addr")), rank, size)
    if rank > 0:
        worker_of_a_server()
    serve()
    del connections


def torchrun():
    store(
        (os.environ["PET_MASTER_ADDR"], int(os.environ["PET_MASTER_PORT"])),
        int(os.environ["PET_NODE_RANK"]),
        int(os.environ["PET_NNODES"]),
    )
    say(f"{os.environ['PET_NPROC_PER_NODE']} processes")


def accelerate():
    machines = int(option("--num_machines"))
    store((option("--main_process_ip"), int(option("--main_process_port"))), int(option("--machine_rank")), machines)
    say(f"{int(option('--num_processes')) // machines} processes")


signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
signal.signal(signal.SIGTERM, lambda *_: os._exit(0 if name in ("vllm", "sglang") else 1))
say(" ".join(["argv", name, *args]))
say(" ".join(["ranks", *(v for v in RANKS if v in os.environ)]))
say("host " + os.environ.get("VLLM_HOST_IP", ""))
{"vllm": vllm, "sglang": sglang, "ray": ray, "driver": driver, "torchrun": torchrun, "accelerate": accelerate}[name]()
