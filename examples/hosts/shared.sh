#!/bin/sh
# Horovod in Docker on four machines that share /mnt/share: the same line on each of them, in any order.
set -eu
exec docker run -it --network=host --gpus all -v /mnt/share/ssh:/root/.ssh \
    -e PAIINIT_PEERS=host1,host2,host3,host4 -e PAIINIT_SECRET_FILE=/root/.ssh/id_rsa \
    my/horovod mpirun -np 16 -H host1:4,host2:4,host3:4,host4:4 -mca plm_rsh_args "-p 12345" python train.py
