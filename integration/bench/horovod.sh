#!/bin/sh
# Builds the image in which bench measures horovodrun: Debian with Open MPI, PyTorch and OpenSSH, and Horovod from its
# source in DIR. Prints its tag. Uses an existing image of the same recipe. Needs what integration/docker/base.sh needs.
#
# DIR is a clone: git clone --recursive --branch v0.28.1 https://github.com/horovod/horovod DIR. The build uses Debian's
# Eigen and Boost, so that DIR needs only the other submodules.
#
# usage: horovod.sh DIR
set -eu

script=$(realpath "$0")
base=$(dirname "$script")/../docker/base.sh
if [ ! -e "$1/third_party/gloo/CMakeLists.txt" ]; then
	echo "$1: no source of Horovod with its submodules" >&2
	exit 1
fi

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
# A tar archive without times and owners has the same checksum in every clone.
tar -C "$1" --exclude=.git --exclude=./build --exclude=./third_party/boost --exclude=./third_party/eigen \
	--sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=a=rX,u+w -c . >"$context/horovod.tar"

both="openmpi-bin python3-cloudpickle python3-packaging python3-psutil python3-torch python3-yaml"
# shellcheck disable=SC2086
runs=$("$base" bookworm $both openssh-client openssh-server python3-distutils)
# shellcheck disable=SC2086
builds=$("$base" bookworm $both cmake g++ libboost-dev libeigen3-dev libopenmpi-dev libtorch-dev make pybind11-dev \
	python3-cffi python3-dev python3-pip python3-setuptools python3-wheel)

recipe=$( (cat "$script" "$context/horovod.tar" && echo "$runs" "$builds") | sha256sum | cut -c1-12)
tag=paiinit-test/horovodrun:$recipe
if docker image inspect "$tag" >/dev/null 2>&1; then
	echo "$tag"
	exit
fi

# The lines about ssh and sshd are those of Horovod's Dockerfile and of its page about Docker. pip installs horovodrun
# as for a user, without pkg_resources, whose import would slow each start.
cat >"$context/Dockerfile" <<-EOF
	FROM $builds AS build
	ADD horovod.tar /horovod
	WORKDIR /horovod
	RUN ln -s /usr/include/eigen3 third_party/eigen
	ENV HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1
	ENV HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1
	RUN MAKEFLAGS=-j\$(nproc) pip install --break-system-packages --no-build-isolation --no-deps --no-index . && \
	    find /usr/local -name '*.so' -exec strip {} +

	FROM $runs
	COPY --from=build /usr/local /usr/local
	RUN echo 'StrictHostKeyChecking no' >/etc/ssh/ssh_config.d/horovod.conf && mkdir -p /run/sshd && \
	    horovodrun --check-build && ssh -V && test -x /usr/sbin/sshd
EOF
docker build --force-rm --network none --tag "$tag" "$context" >&2
echo "$tag"
