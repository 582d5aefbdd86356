#!/bin/sh
# Installs Debian 13 with OpenSSH 10 in a directory, unless one of the same recipe exists, and prints its name. Needs
# root and debootstrap.
#
# usage: debian13.sh CACHE
set -eu

recipe=$(sha256sum "$0" | cut -c1-12)
root=$1/debian13-ssh-$recipe
if [ -d "$root" ]; then
	echo "$root"
	exit
fi
mkdir -p "$1"
new=$(mktemp -d -p "$1")
trap 'rm -rf "$new"' EXIT
chmod 755 "$new"
{
	# Use the mirror of this machine's apt, not debootstrap's default.
	mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' |
		head -n 1)
	# shellcheck disable=SC2086
	debootstrap --variant=minbase --include=openssh-client trixie "$new" $mirror
	rm -rf "$new"/var/cache/apt/* "$new"/var/lib/apt/lists/* \
		"$new"/usr/share/doc/* "$new"/usr/share/locale/* "$new"/usr/share/man/*
	# Another run may have created it meanwhile.
	mv -T "$new" "$root" || [ -d "$root" ]
} >&2 </dev/null
echo "$root"
