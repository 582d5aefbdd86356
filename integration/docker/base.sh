#!/bin/sh
# Builds the Debian image in which tests run jobs, with Python, mpi4py and Open MPI, or the given packages, and without
# ssh and sshd. Prints its tag. Uses an existing image of the same recipe. Needs root, debootstrap and a Docker engine.
#
# usage: base.sh [SUITE [PACKAGE...]]
set -eu

suite=${1:-bookworm}
[ $# = 0 ] || shift
[ $# != 0 ] || set -- openmpi-bin python3 python3-mpi4py
recipe=$( (cat "$0" && echo "$@") | sha256sum | cut -c1-12)
tag=paiinit-test/base:$suite-$recipe
if docker image inspect "$tag" >/dev/null 2>&1; then
	echo "$tag"
	exit
fi

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

{
	# Use the mirror of this machine's apt, not debootstrap's default.
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' |
		head -n 1)
	# shellcheck disable=SC2086
	debootstrap --variant=minbase "$suite" "$root" $mirror
	cp /etc/resolv.conf "$root/etc/resolv.conf"
	echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io"

	# openmpi-bin depends on openssh-client | rsh-client. An empty package provides both, to keep ssh out.
	mkdir -p "$root/stand-in/DEBIAN"
	cat >"$root/stand-in/DEBIAN/control" <<-EOF
		Package: no-remote-shell
		Version: 1
		Architecture: all
		Maintainer: paiinit
		Provides: ssh-client, rsh-client
		Conflicts: openssh-client, openssh-server
		Description: stands in for the remote shell that Open MPI asks for
	EOF
	chroot "$root" dpkg-deb --build /stand-in /stand-in.deb
	chroot "$root" dpkg --install /stand-in.deb

	chroot "$root" apt-get update
	chroot "$root" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
		"$@"
	rm -rf "$root/stand-in" "$root/stand-in.deb" "$root/etc/resolv.conf" \
		"$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* \
		"$root"/usr/share/doc/* "$root"/usr/share/locale/* "$root"/usr/share/man/*

	# Images based on this one inherit the label.
	tar -C "$root" -c . | docker import --change 'CMD ["bash"]' --change 'LABEL paiinit-test=yes' - "$tag"
} >&2 </dev/null
echo "$tag"
