#!/bin/sh
# This replaces init.sh in the ConfigMap of kubeflow/openmpi, whose pods call it as before:
#
#   sh init.sh master|worker WORKERS EXEC INIT_TIMEOUT
#
# The image needs paiinit, but no openssh. The key in secrets/ is the job's secret; the script copies it nowhere.
set -eu

role=$1 exec=$3 timeout=$4
dir=/kubeflow/openmpi
signals=$dir/data/.openmpi-controller

mkdir -p "$HOME/.openmpi"
cp "$dir/assets/mca-params.conf" "$HOME/.openmpi"

if [ "$role" = master ]; then
	if [ "$exec" = null ]; then # as without --exec: a job to be entered
		exec="sleep infinity"
	fi
	exec paiinit --timeout "${timeout}s" -- sh -c "$exec"
fi

# The sidecar signals when the drivers and the data are ready.
left=$timeout
until [ -f "$signals/SIGCONT" ]; do
	if [ "$left" -le 0 ]; then
		echo "the sidecar has not written $signals/SIGCONT within $timeout s" >&2
		exit 124
	fi
	sleep 1
	left=$((left - 1))
done

worker=
trap '[ -z "$worker" ] || kill -TERM "$worker"' TERM INT
paiinit --timeout "${timeout}s" &
worker=$!

# It also signals the end of the master, which paiinit notices by itself once all ranks are connected.
(
	until [ -f "$signals/SIGTERM" ]; do sleep 1; done
	kill -TERM "$worker"
) &
watcher=$!

status=0
wait "$worker" || status=$?
while kill -0 "$worker" 2>/dev/null; do # a trap has interrupted the wait
	status=0
	wait "$worker" || status=$?
done
kill "$watcher" 2>/dev/null || true
exit "$status"
