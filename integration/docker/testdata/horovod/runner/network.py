"""Network interfaces, and small services that authenticate with a key."""

import fcntl
import hashlib
import hmac
import json
import os
import socket
import socketserver
import struct
import threading

SIOCGIFADDR = 0x8915


def interfaces():
    """Returns the IPv4 address of each interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(s, SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found


def address(host):
    try:
        return socket.gethostbyname(host)
    except socket.gaierror:
        return None


def is_local(host):
    return address(host) in interfaces().values()


def driver_address(nics):
    return interfaces()[list(nics)[0]]


def write(stream, key, message):
    body = json.dumps(message).encode()
    stream.write(hmac.digest(key, body, hashlib.sha256) + struct.pack("!I", len(body)) + body)
    stream.flush()


def read(stream, key):
    digest, length = stream.read(32), stream.read(4)
    body = stream.read(struct.unpack("!I", length)[0])
    if not hmac.compare_digest(digest, hmac.digest(key, body, hashlib.sha256)):
        raise PermissionError("a message with another key")
    return json.loads(body)


class Service:
    """Answers messages. Each names a method of the served object."""

    def __init__(self, name, key, methods):
        class Handler(socketserver.StreamRequestHandler):
            timeout = 20

            def handle(self):
                method, args = read(self.rfile, key)
                if method == "ping":
                    answer = [name, self.client_address[0]]
                else:
                    answer = getattr(methods, method)(*args)
                write(self.wfile, key, answer)

        self.server = socketserver.ThreadingTCPServer(("", 0), Handler)
        # Otherwise close does not wait for the answers, and the process may end before it has sent the last one.
        self.server.daemon_threads = False
        self.port = self.server.socket.getsockname()[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def addresses(self):
        return {name: [ip, self.port] for name, ip in interfaces().items()}

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Client:
    """Calls a service at each of its addresses that answers."""

    def __init__(self, name, key, addresses, attempts=3, same_interface=False):
        self.key, self.addresses = key, {}
        probes = [
            threading.Thread(target=self.probe, args=(name, nic, tuple(at), attempts, same_interface))
            for nic, at in addresses.items()
        ]
        for p in probes:
            p.start()
        for p in probes:
            p.join()
        if not self.addresses:
            raise ConnectionError(f"no address of {name} answers: {addresses}")

    def probe(self, name, nic, at, attempts, same_interface):
        for _ in range(attempts):
            try:
                answering, seen = self.send(at, "ping", [])
            except OSError:
                continue
            # If the peer sees another source address, the connection took another interface or a NAT.
            if answering == name and not (same_interface and interfaces().get(nic) != seen):
                self.addresses[nic] = at
            return

    def send(self, at, method, args):
        with socket.create_connection(at, timeout=20) as s, s.makefile("rwb") as stream:
            write(stream, self.key, [method, args])
            return read(stream, self.key)

    def call(self, method, *args):
        return self.send(next(iter(self.addresses.values())), method, args)


def new_key():
    return os.urandom(32)
