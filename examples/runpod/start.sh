#!/bin/sh
# The container start command of an Instant Cluster. PAIINIT_SECRET is one of its environment variables; a RunPod secret
# is best: {{ RUNPOD_SECRET_paiinit }}.
exec paiinit -- mpirun python3 /examples/allreduce.py
