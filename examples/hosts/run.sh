#!/bin/sh
# Horovod in docker on several machines: run the same line on each of them, in any order.
#   ./run.sh 10.0.0.1,10.0.0.2,10.0.0.3
# Copy the same ~/.paiinit-secret to all machines: (umask 077; head -c 32 /dev/urandom | base64 >~/.paiinit-secret)
set -eu
exec docker run --rm --network host --gpus all \
    --volume "$HOME/.paiinit-secret:/run/secrets/paiinit:ro" --env PAIINIT_SECRET_FILE=/run/secrets/paiinit \
    --env PAIINIT_PEERS="$1" --env PAIINIT_PORT=12345 \
    my/horovod mpirun python train.py
