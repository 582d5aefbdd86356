"""A stand-in for the launcher of Horovod 0.28.1: the same command line, the same processes, the same ends.

horovodrun_test.go lists the differences.
"""

import hashlib
import http.server
import io
import json
import os
import re
import shlex
import signal
import sys
import threading
import time

from horovod.runner import execute, network, options, task_fn

CACHED = 60 * 60  # seconds for which a check is cached
SSH_ATTEMPTS = 5
MANY_HOSTS = 64
NOT_EXPORTED = r"BASH_FUNC_|OLDPWD|.*CUDA_VISIBLE_DEVICES|_HOROVOD_SECRET_KEY"
KUBEXEC = "/etc/mpi/kubexec.sh"


def main():
    args = options.parser().parse_args()
    if args.config_file or args.host_discovery_script or args.min_np is not None or args.jsrun:
        sys.exit("the stand-in supports no elastic jobs, jsrun and --config-file")
    if args.hostfile:
        args.hosts = hosts_of_file(args.hostfile)
    args.hosts = args.hosts or f"localhost:{args.num_proc}"
    slots = parse_hosts(args.hosts)
    remote = [host for host, local in zip(slots, in_threads(network.is_local, slots)) if not local]
    cache = None if args.disable_cache else Cache(args)
    if remote:
        check_ssh(args, remote, cache)
    nics = common_interfaces(args, slots, remote, cache)
    env = options.variables(args)
    if args.gloo:
        gloo(args, slots, nics, env)
    else:
        mpi(args, slots, nics, env)


def hosts_of_file(file):
    """Reads `name slots=n` lines. An empty line or a comment raises an exception, like with Horovod."""
    with open(file, encoding="utf-8") as f:
        return ",".join(line.split(maxsplit=1)[0] + ":" + line.rstrip().split("=", 2)[1] for line in f)


def parse_hosts(hosts):
    slots = {}
    for host in hosts.split(","):
        if not re.fullmatch(r"[\w.-]+:[0-9]+", host.strip()):
            raise ValueError(f"not HOST:SLOTS: {host!r}")
        name, n = host.strip().split(":")
        slots[name] = int(n)
    return slots


def in_threads(function, values):
    """Calls function for each value, in a thread of its own, and returns the results."""
    results = [None] * len(values)

    def call(i, value):
        results[i] = function(value)

    threads = [threading.Thread(target=call, args=pair) for pair in enumerate(values)]
    for t in threads:
        t.start()
    for t in threads:
        while t.is_alive():
            t.join(0.1)  # a signal's handler runs between two joins only
    return results


class Cache:
    """Caches the results of checks in the home directory, by processes, hosts, port and key."""

    def __init__(self, args):
        folder = os.path.join(os.path.expanduser("~"), ".horovod")
        os.makedirs(folder, exist_ok=True)
        self.file = os.path.join(folder, "cache.bin")
        identity = [args.num_proc, args.hosts, args.ssh_port, args.ssh_identity_file]
        self.identity = hashlib.md5(json.dumps(identity).encode(), usedforsecurity=False).hexdigest()
        self.known = {}
        try:
            with open(self.file, encoding="utf-8") as f:
                identity, known = json.load(f)
        except (OSError, ValueError):
            return
        if identity == self.identity:
            self.known = known

    def get(self, name):
        when, value = self.known.get(name, (0, None))
        return value if time.time() - when < CACHED else None

    def put(self, name, value):
        self.known[name] = [time.time(), value]
        with open(self.file, "w", encoding="utf-8") as f:
            json.dump([self.identity, self.known], f)


def through_ssh(command, host, args, timeout=None):
    """Returns the shell command that runs a command, quoted by the caller, on a host."""
    if os.environ.get("OMPI_MCA_plm_rsh_agent") == KUBEXEC:
        return f"{KUBEXEC} {host} {command}"
    ssh = ["ssh -o PasswordAuthentication=no -o StrictHostKeyChecking=no", host]
    ssh.append("" if args.ssh_port is None else f"-p {args.ssh_port}")
    ssh.append("" if args.ssh_identity_file is None else f"-i {args.ssh_identity_file}")
    ssh.append("" if timeout is None else f"-o ConnectTimeout={timeout}")
    return " ".join(ssh + [command])


def check_ssh(args, remote, cache):
    name = "ssh " + " ".join(remote)
    if cache and cache.get(name):
        return

    def check(host):
        for _ in range(SSH_ATTEMPTS):
            said = io.StringIO()
            if execute.run(through_ssh("true", host, args, timeout=10), said, said) == 0:
                return True
        print(f"cannot log in to {host}:\n{said.getvalue()}")
        return False

    if not all(in_threads(check, remote)):
        raise RuntimeError("ssh to some hosts failed")
    if cache:
        cache.put(name, True)


class Driver:
    """Collects the reports of the interface discovery's tasks."""

    def __init__(self, hosts):
        self.hosts, self.changed = hosts, threading.Condition()
        self.tasks, self.ways = {}, {}

    def register(self, index, addresses):
        with self.changed:
            self.tasks[index] = addresses
            self.changed.notify_all()

    def addresses_of(self, index):
        return self.tasks[index]

    def reachable(self, index, addresses):
        with self.changed:
            self.ways[index] = addresses
            self.changed.notify_all()

    def wait(self, reports, seconds, what):
        with self.changed:
            if not self.changed.wait_for(lambda: len(reports) == self.hosts, seconds):
                raise TimeoutError(f"{what} took more than {seconds} s")


def common_interfaces(args, slots, remote, cache):
    """Returns the given interfaces, or those by which all hosts reach each other."""
    if not remote:
        return [nic for nic, ip in network.interfaces().items() if ip == "127.0.0.1"]
    if args.nics:
        return args.nics
    name = "interfaces " + " ".join(slots)
    if cache and (known := cache.get(name)):
        return known
    seconds = args.start_timeout or int(os.environ.get("HOROVOD_START_TIMEOUT", "30"))
    key = network.new_key()
    driver = Driver(len(slots))
    service = network.Service("driver", key, driver)
    settings = {"key": key.hex(), "start_timeout": seconds}

    def start(index, host):
        words = [index, len(slots), service.addresses(), settings]
        command = " ".join([sys.executable, "-m", "horovod.runner.task_fn"] + [task_fn.encode(w) for w in words])
        said = io.StringIO()
        status = execute.run(through_ssh(command, host, args) if host in remote else command, said, said)
        if status != 0:
            print(f"the interface check failed:\n{said.getvalue()}", flush=True)
            os._exit(status)

    # Their sessions end by themselves, in the background.
    for index, host in enumerate(slots):
        threading.Thread(target=start, args=(index, host), daemon=True).start()
    driver.wait(driver.tasks, seconds, "the registration of all hosts")
    for index, addresses in driver.tasks.items():
        network.Client(task_fn.name(index), key, addresses).call("registration_complete")
    driver.wait(driver.ways, seconds, "the check between the hosts")
    nics = set.intersection(*(set(ways) for ways in driver.ways.values()))
    service.close()
    if not nics:
        raise RuntimeError(f"the hosts have no interface in common: {driver.ways}")
    if cache:
        cache.put(name, sorted(nics))
    return sorted(nics)


def exported(env):
    return [name for name in env if not re.match(NOT_EXPORTED, name)]


def mpi(args, slots, nics, env):
    """Executes mpirun, through a shell."""
    said = io.StringIO()
    execute.run("mpirun --version", said, said)
    if "Open MPI" not in said.getvalue():
        raise RuntimeError("the stand-in knows Open MPI only")
    ssh = [f"-{option} {value}" for option, value in (("p", args.ssh_port), ("i", args.ssh_identity_file)) if value]
    words = ["mpirun --allow-run-as-root --tag-output", f"-np {args.num_proc} -H {args.hosts}"]
    words += [args.binding_args or "-bind-to none -map-by slot", "-mca pml ob1 -mca btl ^openib"]
    if len(slots) >= MANY_HOSTS:
        words.append(f"-mca plm_rsh_no_tree_spawn true -mca plm_rsh_num_concurrent {len(slots)}")
    if args.prefix_output_with_timestamp:
        words.append("--timestamp-output")
    if ssh:
        words.append(f'-mca plm_rsh_args "{" ".join(ssh)}"')
    if nics:
        words.append(f"-mca btl_tcp_if_include {','.join(nics)} -x NCCL_SOCKET_IFNAME={','.join(nics)}")
    if args.output_filename:
        words.append(f"--output-filename {args.output_filename}")
    words += ["-x " + name for name in sorted(exported(env))]
    words += [args.mpi_args or "", shlex.join(args.command)]
    os.execve("/bin/sh", ["/bin/sh", "-c", " ".join(words)], env)


class Rendezvous(http.server.ThreadingHTTPServer):
    """Stores values for the ranks, under /SCOPE/KEY."""

    daemon_threads = True

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            value = self.server.values.get(self.path)
            self.answer(404 if value is None else 200, value or b"")

        def do_PUT(self):
            self.server.values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(200, b"")

        def answer(self, status, body):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    def __init__(self):
        super().__init__(("", 0), self.Handler)
        self.values = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()


def ranks(slots, least):
    """Returns the variables of each rank. Every slot of every host gets a rank, because -np is only a minimum here."""
    places = [(host, local) for host, n in slots.items() for local in range(n)]
    size = len(places)
    if size < least:
        raise ValueError(f"{least} processes, but {size} slots")
    for rank, (host, local) in enumerate(places):
        across = [h for h, at in places if at == local]
        yield host, {
            "HOROVOD_HOSTNAME": host,
            "HOROVOD_RANK": rank,
            "HOROVOD_SIZE": size,
            "HOROVOD_LOCAL_RANK": local,
            "HOROVOD_LOCAL_SIZE": sum(h == host for h, _ in places),
            "HOROVOD_CROSS_RANK": across.index(host),
            "HOROVOD_CROSS_SIZE": len(across),
        }


def gloo(args, slots, nics, env):
    """Runs one shell command per rank, by ssh on other hosts, and waits until all have ended."""
    server = Rendezvous()
    of_all = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": network.driver_address(nics),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": server.server_port,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": list(nics)[0],
        "NCCL_SOCKET_IFNAME": ",".join(nics),
    }
    env = env | {"PYTHONUNBUFFERED": "1"}
    copied = " ".join(f"{name}={shlex.quote(env[name])}" for name in exported(env))
    stop, failed = threading.Event(), threading.Event()
    for sig in signal.SIGINT, signal.SIGTERM:
        signal.signal(sig, lambda *_: stop.set())

    def start(rank):
        host, own = rank
        words = ["env", assign(own), copied, assign(of_all), shlex.join(args.command)]
        command = " ".join(words)
        if not network.is_local(host):
            command = through_ssh(shlex.quote(f"cd {os.getcwd()} > /dev/null 2>&1 ; {command}"), host, args)
        index = own["HOROVOD_RANK"]
        status = execute.run(command, sys.stdout, sys.stderr, [stop, failed], index)
        if status != 0:
            print(f"rank {index}: status {status}", flush=True)
            if not stop.is_set() and not failed.is_set():
                print(f"rank {index} ends the others", flush=True)
            failed.set()
        return status, time.time(), index

    ends = in_threads(start, list(ranks(slots, args.num_proc)))
    for status, _, index in sorted(ends, key=lambda end: end[1]):
        if status != 0:
            # paiinit reads the beginning of the first line, and the others.
            what = "Horovod detected that one or more processes exited with non-zero status"
            raise RuntimeError(f"{what}, first:\nProcess name: {index}\nExit code: {status}\n")


def assign(variables):
    return " ".join(f"{name}={value}" for name, value in variables.items())


if __name__ == "__main__":
    main()
