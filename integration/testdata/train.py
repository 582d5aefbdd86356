"""Stands in for a TensorFlow program. Like tf.train.Server, every task opens its own port of the cluster. A parameter
server serves for ever (server.join()); a worker waits for all parameter servers, pushes its gradients, and ends.
Without parameter servers the workers push their gradients to each other (MultiWorkerMirroredStrategy), and end when
they have all of them. The cluster comes from TF_CONFIG, or from the options of tf_cnn_benchmarks.py.

--fail INDEX      that worker exits with status 3 before it pushes
--sleep SECONDS   workers run for this long after they have printed their line"""
import argparse, json, os, socket, sys, threading, time

STEPS = 5

p = argparse.ArgumentParser()
for name in "job_name", "ps_hosts", "worker_hosts", "data_dir", "data_name", "train_dir", "model":
    p.add_argument("--" + name)
for name in "task_index", "fail":
    p.add_argument("--" + name, type=int)
p.add_argument("--variable_update", choices=["parameter_server"])
p.add_argument("--local_parameter_device", choices=["cpu", "gpu"])
p.add_argument("--batch_size", type=int)
p.add_argument("--sleep", type=float, default=0)
a = p.parse_args()
if a.job_name:
    cluster = {"ps": a.ps_hosts.split(","), "worker": a.worker_hosts.split(",")}
    kind, index = a.job_name, a.task_index
else:
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, kind, index = config["cluster"], config["task"]["type"], config["task"]["index"]
workers, servers = cluster["worker"], cluster.get("ps", [])


def place(task):
    host, port = task.rsplit(":", 1)
    return host, int(port)


def connect(task):
    while True:  # TensorFlow waits for its servers as well
        try:
            return socket.create_connection(place(task), timeout=5)
        except OSError:
            time.sleep(0.05)


total, changed = 0, threading.Condition()


def serve(s):
    global total
    for line in s.makefile():
        with changed:
            total += int(line)
            s.sendall(b"%d\n" % total)
            changed.notify()


def serve_all(listener):
    while True:
        threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()


listener = socket.create_server(("", place(cluster[kind][index])[1]))
if kind == "ps":
    print("serving", flush=True)
    serve_all(listener)
if index == a.fail:
    sys.exit(3)
if not servers:
    threading.Thread(target=serve_all, args=[listener], daemon=True).start()
others = servers or workers[:index] + workers[index + 1 :]
connections = [connect(task).makefile("rw") for task in others]
for step in range(STEPS):
    for c in connections:
        print(1, file=c, flush=True)
        c.readline()
if not servers:
    with changed:
        changed.wait_for(lambda: total == STEPS * len(others))
print(f"{kind} {index} of {len(workers)} with {len(servers)} parameter servers", flush=True)
time.sleep(a.sleep)
