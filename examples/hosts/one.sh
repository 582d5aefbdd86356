#!/bin/sh
# Horovod in Docker on one machine, which needs neither a list of machines nor a secret.
set -eu
exec docker run -it --gpus all \
    my/horovod mpirun -np 4 -H localhost:4 python train.py
