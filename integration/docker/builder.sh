#!/bin/sh
# Builds the image in which the first stage of Dockerfile.example can run without a network: the image BASE with this
# machine's Go, the modules of go.sum, and their compiled packages, so that a build compiles only paiinit. Prints its
# tag. Uses an existing image of the same parts.
#
# usage: builder.sh BASE
set -eu

base=$1
script=$(realpath "$0")
cd "$(dirname "$0")/../.."
recipe=$( (cat "$script" go.mod go.sum && go version && echo "$base") | sha256sum | cut -c1-12)
tag=paiinit-test/builder:$recipe
if docker image inspect "$tag" >/dev/null 2>&1; then
	echo "$tag"
	exit
fi

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT

{
	# Take only the modules that this module needs, from this machine's cache if possible.
	cache=$(go env GOMODCACHE)/cache/download
	proxy=$(go env GOPROXY)
	GOMODCACHE=$context/mod GOFLAGS=-modcacherw GOPROXY=file://$cache,$proxy go mod download
	packages=$(go list -deps -f '{{with .Module}}{{if not .Main}}{{$.ImportPath}}{{end}}{{end}}' ./... | grep .)

	mkdir "$context/go" "$context/src"
	tar -C "$(go env GOROOT)" --exclude=testdata --exclude='*_test.go' --exclude='./pkg/obj' \
		-c bin/go pkg src go.env VERSION |
		tar -C "$context/go" -x
	cp go.mod go.sum "$context/src/"
	# COPY copies the contents of the directories.
	cat >"$context/Dockerfile" <<-EOF
		FROM $base
		COPY go /usr/local/go
		COPY mod /go/pkg/mod
		ENV PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
		ENV GOPATH=/go GOPROXY=off GOTOOLCHAIN=local GOFLAGS=-buildvcs=false
		COPY src /warm
		RUN cd /warm && CGO_ENABLED=0 go build -trimpath -tags urfave_cli_no_docs $(echo $packages) && rm -r /warm
	EOF
	docker build --network none --tag "$tag" "$context"
} >&2 </dev/null
echo "$tag"
