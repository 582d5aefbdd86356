#!/bin/sh
# Builds the image of a Horovod job, based on one of base.sh: it adds what the Dockerfile of Horovod 0.11.3 to 0.16.0
# adds to Open MPI, and the entry point of Dockerfile.example. Prints its tag. Uses an existing image of the same
# recipe.
#
# The Dockerfile puts a script in place of mpirun, which lets root run it, and three lines into Open MPI's
# configuration. Open MPI is below /usr/local there and has its configuration in /usr/local/etc; Debian's reads
# /etc/openmpi.
#
# usage: horovod.sh IMAGE
set -eu

recipe=$( (cat "$0" && echo "$1") | sha256sum | cut -c1-12)
tag=paiinit-test/horovod:$recipe
if ! docker image inspect "$tag" >/dev/null 2>&1; then
	docker build --network none --tag "$tag" - >&2 <<-DOCKERFILE
		FROM $1
		RUN ln -s /usr/bin/mpirun.openmpi /usr/local/bin/mpirun.real && \
		    printf '%s\n' '#!/bin/bash' 'mpirun.real --allow-run-as-root "\$@"' >/usr/local/bin/mpirun && \
		    chmod 755 /usr/local/bin/mpirun
		RUN printf '%s = %s\n' hwloc_base_binding_policy none rmaps_base_mapping_policy slot btl_tcp_if_exclude lo,docker0 | \
		    tee /usr/local/etc/openmpi-mca-params.conf >>/etc/openmpi/openmpi-mca-params.conf
		RUN echo NCCL_DEBUG=INFO >>/etc/nccl.conf
		WORKDIR /examples
		ENTRYPOINT ["paiinit", "--"]
		CMD ["bash"]
	DOCKERFILE
fi
echo "$tag"
