#!/bin/sh
# Makes a Debian image with an ssh client, as a layer on one of base.sh. Prints its tag. An image made by the same
# recipe is used again. Debian's openmpi-bin brings the client into the images of people who do not keep it out.
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

# The client takes the place of base.sh's stand-in. The host's network reaches Debian's mirror, as it did for base.sh.
docker run --name $name --network host "$1" sh -ec '
	apt-get update
	DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends openssh-client
	rm -rf /var/cache/apt/* /var/lib/apt/lists/*
	ssh -V' >&2 </dev/null
docker commit --change 'CMD ["bash"]' $name "$tag" >&2
echo "$tag"
