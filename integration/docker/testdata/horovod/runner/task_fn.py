"""The interface discovery on each host: python3 -m horovod.runner.task_fn INDEX HOSTS DRIVER SETTINGS, in base64.

Each task registers with the driver, looks which interfaces of the next task answer it, and tells the driver.
"""

import base64
import json
import sys
import threading

from horovod.runner import network


class Task:
    """The methods that other tasks may call."""

    def __init__(self):
        self.all_registered = threading.Event()
        self.checked = threading.Event()

    def registration_complete(self):
        self.all_registered.set()

    def check_complete(self):
        self.checked.set()


def name(index):
    return f"task {index}"


def encode(value):
    return base64.b64encode(json.dumps(value).encode()).decode()


def decode(text):
    return json.loads(base64.b64decode(text))


def wait(event, seconds, what):
    if not event.wait(seconds):
        raise TimeoutError(f"{what} took more than {seconds} s")


def main(index, hosts, addresses, settings):
    key = bytes.fromhex(settings["key"])
    task = Task()
    service = network.Service(name(index), key, task)
    driver = network.Client("driver", key, addresses)
    driver.call("register", index, service.addresses())
    wait(task.all_registered, settings["start_timeout"], "the registration of all hosts")
    following = (index + 1) % hosts
    peer = network.Client(name(following), key, driver.call("addresses_of", following), attempts=10, same_interface=True)
    driver.call("reachable", following, peer.addresses)
    peer.call("check_complete")
    wait(task.checked, settings["start_timeout"], "the check by the host before this one")
    service.close()


if __name__ == "__main__":
    main(*map(decode, sys.argv[1:]))
