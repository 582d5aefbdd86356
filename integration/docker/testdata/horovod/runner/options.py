"""The command line of horovodrun 0.28.1."""

import argparse
import functools

NUMBERS = {"fusion_threshold_mb": int, "cycle_time_ms": float, "autotune_gaussian_process_noise": float}
CAPITALS = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]

# Options with an integer and with a text, by their names, comma-separated.
INTEGERS = """
-p,--ssh-port --start-timeout
--fusion-threshold-mb --cycle-time-ms --cache-capacity
--autotune-warmup-samples --autotune-steps-per-sample --autotune-bayes-opt-max-samples
--autotune-gaussian-process-noise
--min-np,--min-num-proc --max-np,--max-num-proc --slots-per-host --elastic-timeout --reset-limit
--stall-check-warning-time-seconds --stall-check-shutdown-time-seconds
--num-nccl-streams --thread-affinity --gloo-timeout-seconds
"""
TEXTS = """
-i,--ssh-identity-file --output-filename --config-file --autotune-log-file --timeline-filename
--mpi-args --binding-args
"""
FLAGS = "--disable-cache --verbose --tcp -prefix-timestamp,--prefix-output-with-timestamp"

# Pairs that exclude each other: the first name sets the variable, the second one clears it.
SWITCHES = """
--hierarchical-allreduce/--no-hierarchical-allreduce --hierarchical-allgather/--no-hierarchical-allgather
--torus-allreduce/--no-torus-allreduce --autotune/--no-autotune
--timeline-mark-cycles/--no-timeline-mark-cycles --no-stall-check/--stall-check
--mpi-threads-disable/--no-mpi-threads-disable
"""

# Options that the ranks get as variables.
VARIABLES = {
    "fusion_threshold_mb": ("HOROVOD_FUSION_THRESHOLD", lambda mb: mb << 20),
    "cycle_time_ms": ("HOROVOD_CYCLE_TIME", str),
    "cache_capacity": ("HOROVOD_CACHE_CAPACITY", str),
    "hierarchical_allreduce": ("HOROVOD_HIERARCHICAL_ALLREDUCE", int),
    "hierarchical_allgather": ("HOROVOD_HIERARCHICAL_ALLGATHER", int),
    "torus_allreduce": ("HOROVOD_TORUS_ALLREDUCE", int),
    "autotune": ("HOROVOD_AUTOTUNE", int),
    "autotune_log_file": ("HOROVOD_AUTOTUNE_LOG", str),
    "timeline_filename": ("HOROVOD_TIMELINE", str),
    "timeline_mark_cycles": ("HOROVOD_TIMELINE_MARK_CYCLES", int),
    "no_stall_check": ("HOROVOD_STALL_CHECK_DISABLE", int),
    "stall_check_warning_time_seconds": ("HOROVOD_STALL_CHECK_TIME_SECONDS", str),
    "stall_check_shutdown_time_seconds": ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", str),
    "mpi_threads_disable": ("HOROVOD_MPI_THREADS_DISABLE", int),
    "num_nccl_streams": ("HOROVOD_NUM_NCCL_STREAMS", str),
    "thread_affinity": ("HOROVOD_THREAD_AFFINITY", str),
    "gloo_timeout_seconds": ("HOROVOD_GLOO_TIMEOUT_SECONDS", str),
    "log_level": ("HOROVOD_LOG_LEVEL", str),
    "log_with_timestamp": ("HOROVOD_LOG_HIDE_TIME", lambda shown: int(not shown)),
}


class Interfaces(argparse.Action):
    """Collects the names given by any number of --network-interface and --network-interfaces."""

    def __call__(self, parser, args, value, option=None):
        setattr(args, self.dest, (getattr(args, self.dest) or set()) | set(value.split(",")))


class CheckBuild(argparse.Action):
    """Prints the features of the stand-in, without -np."""

    def __call__(self, parser, args, value, option=None):
        print("stand-in for Horovod v0.28.1: controllers MPI and Gloo")
        parser.exit()


@functools.cache
def parser():
    # Abbreviations of long options are allowed, as argparse does by default.
    p = argparse.ArgumentParser(prog="horovodrun")
    p.add_argument("-v", "--version", action="version", version="0.28.1")
    p.add_argument("-np", "--num-proc", type=int, required=True)
    p.add_argument("-cb", "--check-build", action=CheckBuild, nargs=0)
    p.add_argument("--network-interfaces", "--network-interface", action=Interfaces, dest="nics")
    for names in INTEGERS.split():
        names = names.split(",")
        p.add_argument(*names, type=NUMBERS.get(names[-1].lstrip("-").replace("-", "_"), int))
    for names in TEXTS.split():
        p.add_argument(*names.split(","))
    for names in FLAGS.split():
        p.add_argument(*names.split(","), action="store_true")
    for names in SWITCHES.split():
        on, off = names.split("/")
        pair = p.add_mutually_exclusive_group()
        pair.add_argument(on, action="store_true", default=None)
        pair.add_argument(off, action="store_false", default=None, dest=on.lstrip("-").replace("-", "_"))
    p.add_argument("--blacklist-cooldown-range", type=int, nargs=2)
    p.add_argument("--log-level", choices=CAPITALS)
    times = p.add_mutually_exclusive_group()
    times.add_argument("--log-with-timestamp", "--no-log-hide-timestamp", action="store_true", default=None)
    times.add_argument(
        "--log-without-timestamp", "--log-hide-timestamp", action="store_false", default=None, dest="log_with_timestamp"
    )
    hosts = p.add_mutually_exclusive_group()
    hosts.add_argument("-H", "--hosts")
    hosts.add_argument("-hostfile", "--hostfile")
    hosts.add_argument("--host-discovery-script")
    controller = p.add_mutually_exclusive_group()
    for name in "gloo", "mpi", "jsrun":
        controller.add_argument("--" + name, action="store_true")
    p.add_argument("command", nargs=argparse.REMAINDER)
    return p


def variables(args):
    """Returns the environment of the ranks: this process's and the variables of the options."""
    import os

    env = dict(os.environ)
    for option, (name, value) in VARIABLES.items():
        given = getattr(args, option)
        if given is not None and not (option == "autotune" and not given):
            env[name] = str(value(given))
    if args.tcp:
        env["NCCL_IB_DISABLE"] = "1"
    return env
