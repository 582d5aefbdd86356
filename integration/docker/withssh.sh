#!/bin/sh
# Builds a Debian image with an ssh client, based on one of base.sh, because Debian's openmpi-bin installs the client in
# most users' images. Prints its tag. Uses an existing image of the same recipe.
#
# usage: withssh.sh IMAGE
set -eu

recipe=$( (cat "$0" && echo "$1") | sha256sum | cut -c1-12)
tag=paiinit-test/ssh:$recipe
if docker image inspect "$tag" >/dev/null 2>&1; then
	echo "$tag"
	exit
fi

name=paiinit-test-ssh-$$
trap 'docker rm --force $name >/dev/null' EXIT

# The client replaces base.sh's empty package. Debian's mirror is reachable through the host's network, as for base.sh.
docker run --name $name --network host "$1" sh -ec '
	apt-get update
	DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends openssh-client
	rm -rf /var/cache/apt/* /var/lib/apt/lists/*
	ssh -V' >&2 </dev/null
docker commit --change 'CMD ["bash"]' $name "$tag" >&2
echo "$tag"
