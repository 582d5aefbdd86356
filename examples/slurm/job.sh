#!/bin/sh
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#
# One paiinit on each node; mpirun starts as many processes there as it has GPUs, or CPUs. The secret lies where only you
# can read it: (umask 077; head -c 32 /dev/urandom | base64 >~/.paiinit-secret)
srun --ntasks-per-node=1 paiinit --secret-file "$HOME/.paiinit-secret" -- mpirun python3 allreduce.py
