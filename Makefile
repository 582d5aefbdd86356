# make help says what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

N        ?= 4
VERSION  := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
GOBUILD  := CGO_ENABLED=0 go build -trimpath -tags urfave_cli_no_docs -ldflags "-s -w -X main.version=$(VERSION)"
MAXBYTES := 12000000

GOLANGCI         := v2.15.0
GOLANGCI_COMMAND := .cache/golangci-lint-$(GOLANGCI)/golangci-lint

# What the tests and the demonstration run, by Debian's names. The compose tool is added where a Docker engine lacks it.
PACKAGES := gcc libc6-dev binutils ca-certificates iproute2 \
            openmpi-bin python3 python3-mpi4py mpich openssh-client debootstrap tini dumb-init

.PHONY: help
help: ## say what there is
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

.PHONY: build
build: ## bin/paiinit, static, for this machine
	$(GOBUILD) -o bin/paiinit ./cmd/paiinit

.PHONY: cross
cross: ## bin/paiinit-amd64 and -arm64, checked to be static and small
	@for arch in amd64 arm64; do \
		GOOS=linux GOARCH=$$arch $(GOBUILD) -o bin/paiinit-$$arch ./cmd/paiinit; \
		bytes=$$(stat -c %s bin/paiinit-$$arch); \
		echo "bin/paiinit-$$arch: $$bytes bytes"; \
		if (( bytes >= $(MAXBYTES) )); then echo "bin/paiinit-$$arch: not below $(MAXBYTES) bytes" >&2; exit 1; fi; \
		if readelf --wide --program-headers bin/paiinit-$$arch | grep -qw INTERP; then \
			echo "bin/paiinit-$$arch: not static" >&2; exit 1; fi; \
	done

.PHONY: test
test: deps build cross ## all tests that this machine can run; says what was skipped and why
	go test -race -count=1 -timeout 15m -json ./... | go run ./tools/testreport

.PHONY: bench
bench: deps build ## measure beside what others use, into docs/benchmarks.md, and run the Go benchmarks
	go run ./integration/bench -bin bin/paiinit -o docs/benchmarks.md init
	go test -run '^$$' -bench . -benchmem ./rdma ./rsh ./sshd

.PHONY: demo
demo: deps build ## N=4 hosts on this machine: one mpirun, one sum, one exit status
	go run ./integration/demo -n $(N) -bin bin/paiinit

.PHONY: lint
lint: $(GOLANGCI_COMMAND) ## gofmt, go vet, golangci-lint
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt these: $$unformatted" >&2; exit 1; fi
	go vet ./...
	$(GOLANGCI_COMMAND) run ./...

# Compiles for one or two minutes, once.
$(GOLANGCI_COMMAND):
	GOBIN=$(CURDIR)/$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI)

.PHONY: image
image: deps ## paiinit-example: Dockerfile.example on Debian with Open MPI and mpi4py, built without a registry
	base=$$(integration/docker/base.sh); \
	docker build --network none --build-arg BUILDER=$$(integration/docker/builder.sh $$base) --build-arg BASE=$$base \
		--build-arg VERSION=$(VERSION) --file Dockerfile.example --tag paiinit-example .

.PHONY: deps
deps: ## the Debian packages that tests and demonstration need, if they are missing
	@packages="$(PACKAGES)"; \
	if command -v docker >/dev/null && ! docker compose version >/dev/null 2>&1 && ! command -v docker-compose >/dev/null; then \
		packages+=" docker-compose"; fi; \
	if ! command -v dpkg-query >/dev/null; then echo "not Debian; to be there: $$packages"; exit 0; fi; \
	missing=; for p in $$packages; do \
		[ "$$(dpkg-query -W -f '$${db:Status-Status}' $$p 2>/dev/null)" = installed ] || missing+=" $$p"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ]; then echo "missing; as root: apt-get install --no-install-recommends$$missing"; exit 0; fi; \
	echo "installing$$missing"; export DEBIAN_FRONTEND=noninteractive; \
	apt-get -qq update; apt-get -qq install --yes --no-install-recommends $$missing </dev/null >/dev/null

.PHONY: clean
clean: ## remove what was built, but not the docker images that the tests keep
	rm -rf bin .cache
