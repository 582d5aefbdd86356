# make help says what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

N        ?= 4
SEEDS    ?= 100000
RUNS     ?= 200
HOSTS    ?= 64
RESTARTS ?= 1000
T        ?= 60s
SOAK     ?= 1h
SAMPLE   := $(shell date +%s)
VERSION  := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
# urfave_cli_no_docs leaves out the library's writers of documents: 260 kB, and 0.3 ms of each start.
GOBUILD  := CGO_ENABLED=0 go build -trimpath -tags urfave_cli_no_docs -ldflags "-s -w -X main.version=$(VERSION)"
MAXBYTES := 16200000

GOLANGCI         := v2.15.0
GOLANGCI_COMMAND := .cache/golangci-lint-$(GOLANGCI)/golangci-lint
VULNCHECK         := v1.9.0
VULNCHECK_COMMAND := .cache/govulncheck-$(VULNCHECK)/govulncheck
VULNERABILITIES   := https://vuln.go.dev

# What the tests and the demonstration run, by Debian's names. The compose tool is added where a Docker engine lacks it.
PACKAGES := gcc libc6-dev binutils busybox-static ca-certificates iproute2 nftables \
            openmpi-bin python3 python3-mpi4py python3-distributed mpich openssh-client debootstrap tini dumb-init \
            slurmctld slurmd slurm-client munge \
            rsync dropbear-bin putty-tools python3-paramiko curl git ansible-core ssh-audit openssh-server pdsh \
            qemu-system-x86 ibverbs-utils ibverbs-providers

.PHONY: help
help: ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

.PHONY: build
build: ## bin/paiinit, static, for this machine
	$(GOBUILD) -o bin/paiinit ./cmd/paiinit

.PHONY: generate
generate: ## docs/paiinit.1 and completions/, from the commands and flags of the program; NOTICE, from its modules
	go test -count=1 -run '^TestReference$$' ./cmd/paiinit -update
	go run ./tools/notice -o NOTICE

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

.PHONY: release
release: cross ## dist/: binaries, Debian packages, an image, licences and checksums of VERSION=v0.1.0, the same bytes each time
	rm -rf dist
	go run ./tools/release -version $(VERSION) -date $$(git log -1 --format=%ct) -binaries bin -out dist
	cat dist/SHA256SUMS

.PHONY: test
test: export PAIINIT_TEST_SAMPLE = $(SAMPLE)
# A sample has fewer tests that keep the processors busy while others wait.
test: AT_ONCE = -p $(shell expr 2 '*' $$(nproc))
test: test-all ## all quick tests, and a random part of the slow ones (SAMPLE=NUMBER: that part again); says what was skipped and why

# These take longest, so they start first.
LONGEST := ./rendezvous ./integration/docker

.PHONY: test-all
test-all: deps build cross ## all tests that this machine can run; says what was skipped and why
	go test -race -count=1 $(AT_ONCE) -timeout 60m -json $(LONGEST) ./... | \
		go run ./tools/testreport -required "$${PAIINIT_TEST_REQUIRE-}" -sample "$${PAIINIT_TEST_SAMPLE-}"
	[ -n "$${PAIINIT_TEST_SAMPLE-}" ] || go test -count=1 -run '^(TestScale|TestFaults)$$' ./rendezvous

.PHONY: soak
soak: deps ## SEEDS=100000 schedules of faults in simulated time, RUNS=200 real jobs of HOSTS=64 hosts with faults, RESTARTS=1000 restarts of one job; sshd: 1 GB each way, 100,000 commands
	PAIINIT_TEST_SEEDS=$(SEEDS) go test -count=1 -timeout 0 -v -run '^TestFaults$$' ./rendezvous
	go test -count=1 -timeout 0 -v -run '^TestFaults$$' ./integration -faults $(RUNS) -fault-hosts $(HOSTS)
	go test -count=1 -timeout 0 -v -run '^TestManyRestarts$$' ./integration -restarts $(RESTARTS)
	go test -count=1 -timeout 30m -v -run 'Bulk|ShortCommands' ./integration/sshclients -args -bytes 1000000000 -commands 100000

.PHONY: faults
faults: deps build ## the matrix of faults (CELLS=PATTERN: some of its rows) in real jobs of three hosts, into docs/reliability.md
	go run ./integration/faults -bin bin/paiinit -o docs/reliability.md '$(CELLS)'

.PHONY: soak-docker
soak-docker: deps ## SOAK=1h of jobs of Open MPI 4 and 5, MPICH and torchrun on the Docker engine, with random faults; SEED=N for the first
	PAIINIT_TEST_REQUIRE=1 go test -count=1 -timeout 0 -v -run '^TestSoak$$' ./integration/docker -soak $(SOAK) $(if $(SEED),-soak-seed $(SEED))

.PHONY: fuzz
fuzz: ## T=60s of made-up input for each parser of foreign bytes
	@for package in $$(grep -rl --include=*_test.go '^func Fuzz' . | xargs -n 1 dirname | sort -u); do \
		for name in $$(go test -list '^Fuzz' $$package | grep '^Fuzz'); do \
			echo "$$package $$name"; go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(T) -fuzzminimizetime 100x $$package; \
		done; \
	done

.PHONY: mutate
mutate: ## break the rendezvous in each way of rendezvous/testdata/mutations: a test must notice each
	PAIINIT_TEST_MUTATE=. go test -count=1 -timeout 0 -v -run '^TestMutations$$' ./rendezvous

KUBERNETES := .cache/kubernetes/kubernetes

.PHONY: test-arm64
test-arm64: cross ## bin/paiinit-arm64 on this processor, by qemu: commands, a job of one and of two ranks
	$(MAKE) deps PACKAGES="qemu-user-static iproute2"
	integration/arm64.sh bin/paiinit-arm64

.PHONY: test-skew
test-skew: deps ## a job in which one rank has OLD=FILE, an earlier version; without OLD the last tag's
	@old="$(OLD)"; if [ -z "$$old" ]; then \
		tag=$$(git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null) || { echo "no earlier tag, nothing to compare with"; exit 0; }; \
		old=$$PWD/.cache/skew/paiinit; rm -rf .cache/skew; mkdir -p .cache/skew/src; \
		git archive "$$tag" | tar --extract --directory .cache/skew/src; \
		(cd .cache/skew/src && CGO_ENABLED=0 go build -trimpath -ldflags "-X main.version=$$tag" -o "$$old" ./cmd/paiinit); fi; \
	PAIINIT_TEST_REQUIRE=1 PAIINIT_TEST_OLD=$$(realpath "$$old") go test -tags skew -count=1 -timeout 5m -v -run '^TestSkew$$' ./integration

.PHONY: test-screenshots
test-screenshots: ## the page of a launch in Debian's chromium (124 MB to load, 412 MB installed), at two widths, light and dark
	$(MAKE) deps PACKAGES=chromium
	go test -tags screenshots -count=1 -timeout 10m -v -run '^TestScreenshots$$' ./timeline

.PHONY: cluster
cluster:
	$(MAKE) deps PACKAGES="$(PACKAGES) containernetworking-plugins $$(command -v containerd >/dev/null || echo containerd)"
	$(MAKE) image $(KUBERNETES)

.PHONY: test-kubernetes
test-kubernetes: cluster ## jobs on a real Kubernetes of one node; the first time that is built, for about seven minutes
	go test -tags kubernetes -count=1 -timeout 15m -v ./integration/kubernetes

.PHONY: soak-kubernetes
soak-kubernetes: cluster ## SOAK=1h of jobs of Open MPI on that Kubernetes, with random faults; SEED=N for the first
	go test -tags kubernetes -count=1 -timeout 0 -v -run '^TestSoak$$' ./integration/kubernetes -soak $(SOAK) $(if $(SEED),-soak-seed $(SEED))

$(KUBERNETES): $(wildcard integration/kubernetes/cluster/*.sh integration/kubernetes/cluster/*/*.*)
	integration/kubernetes/cluster/build.sh $(CURDIR)/$(@D)

.PHONY: bench
bench: deps build ## measure beside what others use, into docs/benchmarks.md, and run the Go benchmarks
	go run ./integration/bench -bin bin/paiinit -o docs/benchmarks.md init
	go run ./integration/bench -bin bin/paiinit -o docs/benchmarks.md rendezvous
	go run ./integration/bench -n 3 -bin bin/paiinit -o docs/benchmarks.md scale
	go run ./integration/bench -o docs/benchmarks.md virtual
	go run ./integration/bench -bin bin/paiinit -o docs/benchmarks.md fabric
	go run ./integration/bench -n 11 -bin bin/paiinit -o docs/benchmarks.md restarts
	go run ./integration/bench -bin bin/paiinit -o docs/benchmarks.md rsh
	go run ./integration/bench -bin bin/paiinit -o docs/benchmarks.md launchers
	go run ./integration/bench -bin bin/paiinit -o docs/benchmarks.md sshd
	go run ./integration/bench -o docs/benchmarks.md plots
	go test -run '^$$' -bench . -benchmem ./jobkey ./rdma ./rsh ./sshd

.PHONY: bench-horovod
bench-horovod: deps build ## measure horovodrun with paiinit and with OpenSSH, into docs/benchmarks.md; builds Horovod from HOROVOD=DIR, the first time for minutes
	go run ./integration/bench -n 7 -bin bin/paiinit -horovod '$(HOROVOD)' -o docs/benchmarks.md horovodrun

.PHONY: compare
compare: deps build ## measure bin/paiinit beside OLD=FILE, an earlier build of it, by turns
	go run ./integration/bench -old $(OLD) -bin bin/paiinit builds

.PHONY: demo
demo: build ## N=4 hosts on this machine: one mpirun, one sum, one exit status; FAIL=1: one host is lost
	@if [ "$$(id -u)" = 0 ]; then $(MAKE) --no-print-directory deps PACKAGES="openmpi-bin python3-mpi4py iproute2"; fi
	go run ./integration/demo -n $(N) -bin bin/paiinit $(if $(FAIL),-fail)
	@$(if $(FAIL),,echo; echo "make demo FAIL=1 shows a job that loses a host.")

.PHONY: lint
lint: $(GOLANGCI_COMMAND) $(VULNCHECK_COMMAND) ## gofmt, go mod verify, go vet, golangci-lint, govulncheck
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "gofmt these: $$unformatted" >&2; exit 1; fi
	go mod verify
	go vet ./...
	$(GOLANGCI_COMMAND) run ./...
	@if timeout 10 bash -c 'exec 3<>/dev/tcp/$(notdir $(VULNERABILITIES))/443' 2>/dev/null; then $(VULNCHECK_COMMAND) -db $(VULNERABILITIES) ./...; \
	else echo "govulncheck: $(VULNERABILITIES) cannot be reached, known vulnerabilities are not looked for"; fi

# Compiles for one or two minutes, once.
$(GOLANGCI_COMMAND):
	GOBIN=$(CURDIR)/$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI)

$(VULNCHECK_COMMAND):
	GOBIN=$(CURDIR)/$(@D) go install golang.org/x/vuln/cmd/govulncheck@$(VULNCHECK)

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
	rm -rf bin dist .cache
