"""A program for parameter servers without TensorFlow. As with tf.train.Server, every task opens its own port of the
cluster, a parameter server serves for ever (server.join()), and a worker waits for all parameter servers, pushes its
gradients, and ends. The cluster comes from TF_CONFIG, or from the options of tf_cnn_benchmarks.py."""
import argparse, json, os, socket, threading, time

p = argparse.ArgumentParser()
for name in "job_name", "ps_hosts", "worker_hosts":
    p.add_argument("--" + name)
p.add_argument("--task_index", type=int)
a = p.parse_args()
if a.job_name:
    cluster = {"ps": a.ps_hosts.split(","), "worker": a.worker_hosts.split(",")}
    kind, index = a.job_name, a.task_index
else:
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, kind, index = config["cluster"], config["task"]["type"], config["task"]["index"]


def place(task):
    host, port = task.rsplit(":", 1)
    return host, int(port)


def connect(task):
    while True:  # TensorFlow waits for its servers, too
        try:
            return socket.create_connection(place(task), timeout=5)
        except OSError:
            time.sleep(0.05)


server = socket.create_server(("", place(cluster[kind][index])[1]))
if kind == "ps":
    total, lock = 0, threading.Lock()

    def serve(s):
        global total
        for line in s.makefile():
            with lock:
                total += int(line)
                s.sendall(b"%d\n" % total)

    print("serving", flush=True)
    while True:
        threading.Thread(target=serve, args=[server.accept()[0]], daemon=True).start()
servers = [connect(task).makefile("rw") for task in cluster["ps"]]
for step in range(5):
    for s in servers:
        print(1, file=s, flush=True)
        s.readline()
print(f"{kind} {index} of {len(cluster['worker'])} with {len(servers)} parameter servers", flush=True)
