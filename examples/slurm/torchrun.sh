#!/bin/sh
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#
# job.sh says how to make the secret.
srun --ntasks-per-node=1 paiinit --secret-file "$HOME/.paiinit-secret" --exec all -- torchrun --nproc-per-node 8 train.py
