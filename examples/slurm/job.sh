#!/bin/sh
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#
# One paiinit on each node; mpirun starts one process for each of its GPUs, or CPUs. Keep the secret in a file that only
# you can read: (umask 077; head -c 32 /dev/urandom | base64 >~/.paiinit-secret)
srun --ntasks-per-node=1 paiinit --secret-file "$HOME/.paiinit-secret" -- mpirun python3 allreduce.py
