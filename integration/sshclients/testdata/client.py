"""A client with paramiko: run COMMAND with standard input and output, put or get a file.

usage: client.py PORT USER KEY KNOWN_HOSTS run COMMAND | put LOCAL REMOTE | get REMOTE LOCAL
"""
import sys
import threading

import paramiko

port, user, key, known, verb, *words = sys.argv[1:]
client = paramiko.SSHClient()
client.load_host_keys(known)
client.set_missing_host_key_policy(paramiko.RejectPolicy())
try:
    # The default timeouts are too short for a slow machine.
    client.connect(
        "127.0.0.1", int(port), user, key_filename=key, allow_agent=False, look_for_keys=False,
        timeout=60, banner_timeout=60, auth_timeout=60)
except paramiko.AuthenticationException as e:
    print(e, file=sys.stderr)
    sys.exit(255)
with client:
    if verb == "run":
        stdin, stdout, stderr = client.exec_command(words[0])

        def send():
            stdin.write(sys.stdin.buffer.read())
            stdin.channel.shutdown_write()

        feeder = threading.Thread(target=send)
        feeder.start()
        sys.stdout.buffer.write(stdout.read())
        sys.stderr.buffer.write(stderr.read())
        feeder.join()
        sys.exit(stdout.channel.recv_exit_status())
    with client.open_sftp() as sftp:
        getattr(sftp, verb)(*words)
