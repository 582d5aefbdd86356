#!/bin/bash
# Runs the arm64 binary $1 on another processor, by qemu's user mode: version, env, check, a job of one and a job of two
# ranks. paiinit executes itself, so the kernel must hand arm64 programs to qemu: binfmt_misc does, registered here in a
# user namespace of its own (Linux 6.7), so that the machine stays as it is.
set -euo pipefail
if [ -z "${INSIDE:-}" ]; then
	exec env -i INSIDE=1 PATH="$PATH" unshare --user --map-root-user --mount --pid --net --fork "$0" "$(realpath "$1")"
fi
mount -t proc proc /proc
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
mount -t tmpfs tmpfs /run
ip link set lo up
# The ELF header of an arm64 program (Documentation/admin-guide/binfmt-misc.rst in the kernel's sources). F: qemu is
# opened now; O and C: it gets the opened program and its credentials.
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
echo ":arm64:M::$magic:$mask:$(command -v qemu-aarch64-static):OCF" >/proc/sys/fs/binfmt_misc/register

mkdir /run/bin
cp "$1" /run/bin/paiinit
export PATH=/run/bin:$PATH
expect() { # the status, the text that the output contains, the command
	local status=0 out
	out=$("${@:3}" 2>&1) || status=$?
	if [ "$status" != "$1" ] || [[ $out != *"$2"* ]]; then
		echo "${*:3}: status $status instead of $1, or no '$2' in:" >&2
		echo "$out" >&2
		exit 1
	fi
	echo "ok: ${*:3}"
}
expect 0 linux/arm64 paiinit version
expect 0 single paiinit env
expect 0 ' OK' paiinit check true
expect 3 '' paiinit -- sh -c 'exit 3'
export PAIINIT_SECRET=a-secret-for-two-emulated-ranks PAIINIT_PEERS=127.0.0.1:21001,127.0.0.1:21002 PAIINIT_JOB=arm64
PAIINIT_RANK=1 paiinit --state-dir /run/worker &
expect 5 'status 5' paiinit --rank 0 --state-dir /run/first -- \
	sh -c 'test "$(paiinit rsh worker-1 printenv PAIINIT_RANK)" = 1 && exit 5'
status=0
wait $! || status=$?
[ $status = 5 ] || { echo "the worker ended with $status instead of 5" >&2; exit 1; }
echo "ok: both ranks ended with 5"
