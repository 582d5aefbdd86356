"""Runs a shell command like Horovod: below a process in another session, which ends the command on request.

launcher -- this file as a program (setsid) -- sh -c COMMAND
"""

import os
import re
import select
import signal
import subprocess
import sys
import threading

GRACE = 5  # seconds from TERM to KILL
POLL = 1  # seconds between two checks of the events


def run(command, out, err, events=(), rank=None):
    """Returns the status of the command, and copies its lines. Any of the events ends it."""
    watched, told = os.pipe()  # a byte, or EOF when the launcher dies, ends the command
    child = subprocess.Popen(
        [sys.executable, __file__, str(watched), command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[watched],
        start_new_session=True,
    )
    os.close(watched)
    with child, os.fdopen(told, "wb", 0) as told:
        ended = threading.Event()
        for event in events:
            threading.Thread(target=tell, args=(event, ended, told), daemon=True).start()
        copies = []
        for name, source, stream in ("stdout", child.stdout, out), ("stderr", child.stderr, err):
            prefix = "" if rank is None else f"[{rank}]<{name}>:"
            copies.append(threading.Thread(target=copy, args=(source, stream, prefix)))
            copies[-1].start()
        status = child.wait()
        ended.set()
        for c in copies:
            c.join()
    return status


def tell(event, ended, told):
    while not ended.is_set():
        if event.wait(POLL):
            try:
                told.write(b"x")
            except (ValueError, BrokenPipeError):
                pass  # the command has ended at the same time
            return


def copy(source, stream, prefix):
    """Copies line by line. A carriage return ends a line, too."""

    def write(line):
        stream.write(prefix + line.decode(errors="replace"))
        stream.flush()

    pending = b""
    while data := os.read(source.fileno(), 1000):
        *lines, pending = re.split(rb"(?<=[\r\n])", pending + data)
        for line in lines:
            write(line)
    if pending:
        write(pending)


def children(pid):
    """Returns the processes whose parent is pid."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{int(entry)}/stat", "rb") as f:
                if int(f.read().rpartition(b")")[2].split()[1]) == pid:
                    found.append(int(entry))
        except (ValueError, OSError):
            pass  # not a process, or it has ended
    return found


def send(pid, sig):
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def wait(pids):
    """Waits for the end of other processes, for the grace at most, and returns those that are left."""
    left = {}
    poll = select.poll()
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        left[fd] = pid
        poll.register(fd, select.POLLIN)
    while left and (ready := poll.poll(GRACE * 1000)):
        for fd, _ in ready:
            poll.unregister(fd)
            os.close(fd)
            del left[fd]
    return list(left.values())


def kill(pid):
    for child in children(pid):
        kill(child)
    send(pid, signal.SIGKILL)


def end(shell):
    """Sends TERM to the shell's children, then KILL to the rest. The shell itself gets STOP, then TERM, then KILL.

    A shell with a single program as its command has executed it: it has no children, and is stopped when TERM arrives.
    """
    for child in children(shell):
        send(child, signal.SIGTERM)
    left = wait(children(shell))
    send(shell, signal.SIGSTOP)
    for child in left:
        kill(child)
    send(shell, signal.SIGTERM)
    if wait([shell]):
        send(shell, signal.SIGKILL)


def main(watched, command):
    shell = subprocess.Popen(command, shell=True)

    def listen():
        os.read(int(watched), 1)
        end(shell.pid)

    threading.Thread(target=listen, daemon=True).start()
    status = shell.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
