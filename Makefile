# Pannier's build. It needs Go, git, make and bash; the tests of mounts need
# root, the race detector a C compiler. Tools, and the foreign CSI driver and the
# Consul of the tests, are built once into a cache outside the tree (see tools/tool).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Programs go to bin/, plugins to bin/plugins/, where the agent looks for them. bin/pannier executes bin/pannier-agent for
# `pannier agent`.
PROGRAMS := host/cmd/pannier host/cmd/pannier-agent
PLUGINS  := csi-bridge sids consul-services envoy-bootstrap docker-volume web nomad-api
BIN      := bin

VERSION = $(shell tools/version)
# A program consists of what its module's go.mod names: go.work would add what the tests need. Nothing of the commit is in
# it, so a plugin that has not changed has the same bytes.
GO_BUILD = GOWORK=off CGO_ENABLED=0 go build -trimpath -buildvcs=false
# The version of pannier. Plugins and csi-local have their own, in their files VERSION.
STAMP = -X main.version=$(VERSION) -X main.releaseKey=$(RELEASE_KEY)
# gRPC without its pages of calls. It is set for tests, too, so that they share what is compiled.
export GOFLAGS += -tags=grpcnotrace
# What pannier self verify trusts: the key's line of the file. There is none before the first release.
RELEASE_KEY = $(shell sed -n '/^RW/p' packaging/pannier.pub 2>/dev/null)

# gotestsum's last line has the number of tests that ran, failed and were skipped. `make lint` vets the tests, so this
# does not. They are linked without debugging tables, which is faster.
GOTESTSUM = $$(tools/tool gotestsum) --format pkgname --format-hide-empty-pkg --
GO_TEST   = $(GOTESTSUM) -vet=off -ldflags='-s -w' -timeout 40m
# Tests mostly wait, so more packages run at the same time than there are processors. Within a package
# test/lib/check.SideBySide does the same for tests.
AT_ONCE   = -p 3
# Packages whose tests run a built program, need root or start a server read this variable (test/lib/testbin). They
# share the programs that they build, and Go's test cache does not apply to them, since it cannot know whether a
# program has changed. It applies to all other packages.
export PANNIER_TEST_RUN := $(shell date +%s%N)

PROTO_ROOTS := sdk/proto sdk/api/proto host/internal/peer/proto
MODULES     := . sdk sdk/conformance drivers/csi-local test/suite examples/plugins/dirs examples/plugins/plain examples/plugins/volumes-page tools tools/buf tools/consul tools/consul-1.22 tools/cyclonedx-gomod tools/dockerd tools/go-licenses tools/golangci-lint tools/minisign tools/nfpm tools/runc
# ./... leaves out modules below this one.
PACKAGES    := ./... ./sdk/... ./sdk/conformance/... ./drivers/csi-local/... ./test/suite/...
CACHE       := $(or $(PANNIER_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/pannier)
FUZZTIME    := 10s

.PHONY: help
help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: plugins ## Build the programs into bin/ and the plugins into bin/plugins/
	$(GO_BUILD) -ldflags '$(LDFLAGS) $(STAMP)' -o $(BIN)/ $(PROGRAMS:%=./%)

.PHONY: plugins
plugins: ## Build csi-local into bin/ and the plugins into bin/plugins/
	cd drivers/csi-local && $(GO_BUILD) -ldflags '$(LDFLAGS)' -o $(abspath $(BIN))/ .
	$(GO_BUILD) -ldflags '$(LDFLAGS)' -o $(BIN)/plugins/ $(PLUGINS:%=./plugins/%)

# The archive has the same bytes wherever a commit is built, with the Go that go.mod names. GOARCH=arm64 builds for
# another machine.
ARCHIVE = pannier_$(VERSION)_$(shell go env GOOS)_$(shell go env GOARCH)

.PHONY: dist
dist: export GOTOOLCHAIN = go$(shell sed -n 's/^go //p' go.mod)
dist: ## Write the archive of a release into dist/: programs, licences, SBOMs; and dist/SHA256SUMS
	@rm -rf dist/$(ARCHIVE)
	@$(MAKE) --no-print-directory build BIN=dist/$(ARCHIVE) LDFLAGS='-s -w'
	@tools/dist $(ARCHIVE) $(VERSION) $(PROGRAMS:%=./%) $(PLUGINS:%=./plugins/%)

# For another machine, completions are written by a program for this one.
NATIVE := GOOS=$(shell go env GOHOSTOS) GOARCH=$(shell go env GOHOSTARCH)

.PHONY: packages
packages: dist ## Make a deb, an rpm and an apk of the archive of a release, in dist/; and dist/SHA256SUMS
	@$(NATIVE) $(MAKE) --no-print-directory man
	@work=$$(mktemp -d) && trap 'rm -r "$$work"' EXIT && tar -C "$$work" -x -f dist/$(ARCHIVE).tar.gz && \
		export MAN=bin/man COMMAND="$$work/native" && \
		$(NATIVE) $(GO_BUILD) -o "$$COMMAND" ./host/cmd/pannier && \
		if [ -e dist/$(ARCHIVE).SHA256SUMS.minisig ]; then \
			cp dist/$(ARCHIVE).SHA256SUMS.minisig "$$work/$(ARCHIVE)/SHA256SUMS.minisig"; fi && \
		tools/packages "$$work/$(ARCHIVE)" '$(VERSION)' dist deb rpm apk
	@cd dist && sha256sum -- *.tar.gz *.deb *.rpm *.apk | tee SHA256SUMS

.PHONY: sign
sign: ## Sign the checksums in dist/ with the minisign key in the file KEY
	@"$$(tools/tool minisign)" -S -s '$(KEY)' -t 'Pannier $(VERSION)' $$(printf -- '-m %s ' dist/*.SHA256SUMS dist/SHA256SUMS)

.PHONY: demo
demo: build ## Show a volume's life on one host, a crash included (root)
	$(GO_BUILD) -o bin/csi-bridge-failing ./plugins/csi-bridge/testdata/failing
	go run ./test/demo -bin bin

.PHONY: demo-cluster
demo-cluster: KEEP =
demo-cluster: build ## Show five hosts: the leader killed, a node cut off, its volume moved; in a browser too (root; KEEP=1: until Ctrl-C)
	$(GO_BUILD) -o bin/ ./test/lib/shareddriver
	go run ./test/demo -bin bin -cluster $(if $(KEEP),-keep)

.PHONY: demo-docker
demo-docker: build ## Show one volume for containers of two hosts with a dockerd each: refused, cut off, moved (root, docker.io)
	$(GO_BUILD) -o bin/ ./test/lib/shareddriver
	go run ./test/demo -bin bin -docker

.PHONY: demo-mesh
demo-mesh: build consul envoy ## Show two workloads in the mesh of a real Consul and Envoy, and what is left of them: nothing (root)
	go run ./test/demo -bin bin -mesh -consul "$$(tools/tool consul)" -envoy "$$(tools/envoy)"

# Clusters of real agents have elections and timeouts, and a Chromium gives up connections, on a busy machine. Their
# tests run two packages at a time, after all other tests; and so do those that give a plugin in an interpreted
# language ten seconds to start, and a driver ten for a call.
CLUSTERS := test/suite/cluster test/suite/chaos test/suite/faults test/suite/stalls test/suite/security test/suite/dockervolume test/suite/browser
ALONE    := $(CLUSTERS) examples/plugins plugins/csi-bridge

# These packages take longest. They start first, so that none of them runs alone at the end.
LONGEST := test/suite/e2e test/suite/crash

.PHONY: test
test: hostpath consul envoy node-plugin python-plugin ## Run all tests (root, for those of mounts)
	$(GO_TEST) $(AT_ONCE) $(LONGEST:%=./%) $$(go list $(PACKAGES) | grep -v -F -x $(ALONE:%=-e github.com/pannier/pannier/%))
	$(GO_TEST) -p 2 $(ALONE:%=./%)

.PHONY: test-cluster
test-cluster: ## Run the tests of clusters only: several hosts, each in a network of its own (root)
	$(GO_TEST) -p 2 $(CLUSTERS:%=./%)

.PHONY: quick
quick: ## Build everything and run the fast tests: no root, no servers, under a minute (the inner loop)
	go build $(PACKAGES)
	$(GO_TEST) $(AT_ONCE) $$(tools/quick)

.PHONY: test-browser
test-browser: ## Look at the pages of the plugin web in a real Chromium; leaves their pictures in test/artefacts (root, chromium; WIDTHS=1: those of a cluster in trouble, in three widths and both colour schemes)
	$(GO_TEST) ./test/suite/browser

.PHONY: web-pictures
web-pictures: ## Take the pictures of docs/web.md anew (root, chromium)
# As on a machine with systemd: its mounts are shared, and process 1 has the agents' mount namespace. The shell waits for
# what is left to it.
	unshare --mount --propagation shared --pid --fork --mount-proc sh -c "$(GO_TEST) -count=1 -run '^TestCluster\$$' ./test/suite/browser; exit \$$?"
	cp test/artefacts/cluster-overview.png docs/images/web-overview.png
	cp test/artefacts/cluster-volume.png docs/images/web-volume.png

.PHONY: race
race: GO_TEST += -race -timeout 30m
race: test ## Run all tests with the race detector

.PHONY: e2e
e2e: hostpath consul envoy ## Run the end-to-end tests only (root)
	$(GO_TEST) $(AT_ONCE) ./test/suite/e2e/...

.PHONY: crash
crash: SEED = $(shell date +%s)
crash: hostpath consul ## Kill everything everywhere, and compare what is left (root; about nine minutes)
	@cd test/suite/crash && go test -count=1 -timeout 30m -full -parallel 12 -seed=$(SEED) | sed -u -e '/^PASS$$/d' -e '/^ok /d'

.PHONY: conformance
conformance: ## Run the whole conformance kit with every bad plugin, and count the faults it finds (root; some minutes)
	@cd sdk/conformance && go test -count=1 -timeout 30m -full | sed -u -e '/^PASS$$/d' -e '/^ok /d'

.PHONY: chaos
chaos: DURATION = 10m
chaos: SEED = 0
chaos: ## Let everything go wrong in clusters of real agents, for DURATION (10m), or once by a SEED (root)
	@go test -count=1 -timeout 24h -v -run '^TestChaos$$' ./test/suite/chaos $(if $(filter-out 0,$(SEED)),-seed=$(SEED),-duration=$(DURATION))

.PHONY: stalls
stalls: DURATION = 10m
stalls: SEED = 0
stalls: ## Stall, fill and damage what one agent relies on, for DURATION (10m), in an order by a SEED (root)
	@go test -count=1 -timeout 24h -v -run '^TestHost$$' ./test/suite/stalls -duration=$(DURATION) -seed=$(SEED)

.PHONY: boots
boots: N = 20
boots: SEED = 0
boots: ## Boot a host with a real systemd N (20) times, while its programs are killed at random moments (root; minutes)
	@go test -count=1 -timeout 60m -v -run '^TestBoots$$' ./test/suite/systemd -boots=$(N) -boot-seed=$(SEED)

.PHONY: mutants
mutants: ONLY =
mutants: hostpath consul envoy ## Plant bugs, one at a time, and check that the test of the broken promise fails (root; ONLY=REGEXP)
	@go run ./test/mutants -run '$(ONLY)'

.PHONY: attacks
attacks: ONLY =
attacks: hostpath consul ## Try each attack of a table for real, and check that it does not work (root; ONLY=REGEXP)
	@go run ./test/attacks -run '$(ONLY)'

.PHONY: drivers
drivers: hostpath ## Run CSI drivers through every operation and fault, and write test/suite/drivers/MATRIX.md (root)
	@cd test/suite/drivers && go test -count=1 -timeout 30m -full -update | sed -u -e '/^PASS$$/d' -e '/^ok /d'

.PHONY: docker-head
docker-head: ## Run the tests of Docker with moby's newest release, built into the cache (root, docker.io, gcc; ten minutes, once)
	@mkdir -p bin/docker-head
	@ln -sf "$$(CGO_ENABLED=1 tools/tool runc)" bin/docker-head/runc
	@printf '#!/bin/sh\nexec %s --seccomp-profile=unconfined "$$@"\n' "$$(tools/tool dockerd)" >bin/docker-head/dockerd
	@chmod 0755 bin/docker-head/dockerd
	PATH=$(CURDIR)/bin/docker-head:$$PATH $(GO_TEST) ./test/suite/dockervolume

.PHONY: hostpath
hostpath: ## Build the foreign CSI driver of the tests into bin/hostpathplugin, and its first version into the cache
	@mkdir -p bin
	@install -m 0755 "$$(go run ./test/lib/hostpath/cmd/hostpath-build '$(CACHE)')" bin/hostpathplugin

.PHONY: consul-1.22
consul-1.22: envoy ## Run the tests of bootstraps and of the mesh against Consul 1.22 too (root; builds it once, about five minutes)
# TestMeshData writes entries by Consul's command, which the go command builds with another API module than the release's.
	PANNIER_TEST_CONSUL=consul-1.22 go test -count=1 -timeout 30m ./plugins/envoy-bootstrap/... ./test/suite/e2e \
		-run 'Parity|Mesh|Bootstrap' -skip '^TestMeshData$$'

.PHONY: consul
consul: ## Build the Consul of the tests into the cache (about four minutes, once)
	@tools/tool consul >/dev/null

.PHONY: envoy
envoy: ## Get the Envoy of the tests into the cache, where there is a Python with pip and a network
	@tools/envoy >/dev/null || { code=$$?; ((code == 3)) || exit $$code; }

.PHONY: node-plugin
node-plugin: ## Build the example plugin in JavaScript into the cache, where there is node
	@examples/plugins/node-dirs/build >/dev/null || { code=$$?; ((code == 3)) || exit $$code; }

.PHONY: python-plugin
python-plugin: ## Build the example plugin in Python into the cache, where there is a Python with grpcio or apt-get
	@examples/plugins/python-dirs/build >/dev/null || { code=$$?; ((code == 3)) || exit $$code; }

.PHONY: fuzz
fuzz: ## Run each fuzz test for FUZZTIME (10s)
	@tools/fuzz $(FUZZTIME)

.PHONY: bench
bench: consul envoy ## Measure what Pannier costs on an idle machine, into bench/ (root, strace, etcd-server; ONLY=REGEXP, FULL=1, FORCE=1)
	@mkdir -p bench
	@go run ./test/bench/begin -out $(RESULTS) -version '$(VERSION)' $(if $(FORCE),-force)
	@failed=0; CGO_ENABLED=0 go test -run '^$$' -bench '^Benchmark(Pannier|Pages|Mesh|Plugins|Cluster)$$' -benchtime 1x -timeout 60m \
		./test/bench ./test/suite/browser ./host/internal/bench/meshbench ./host/internal/bench/pluginbench ./host/internal/bench/clusterbench \
		-args -out=$(RESULTS) -only='$(ONLY)' $(if $(FULL),-full) || failed=$$?; cat $(RESULTS:.json=.txt); exit $$failed
bench: RESULTS = $(CURDIR)/bench/results.json
bench: ONLY =

.PHONY: herd
herd: NODES = 2000
herd: ## Let all nodes of a cluster do the same thing at once, in sizes up to NODES (2000), and print what that costs (root)
	@CGO_ENABLED=0 go test -run '^$$' -bench '^BenchmarkHerd$$' -benchtime 1x -timeout 60m ./host/internal/bench/clusterbench \
		-args -nodes=$(NODES)

.PHONY: bench-page
bench-page: ## Write the results of make bench into test/bench/TABLE.md
	@go run ./test/bench/page bench/results.json test/bench/TABLE.md

.PHONY: house
house: ## Print the rooms with their lines, budgets and arrows; fail when a room is over its budget
	@go run ./test/house

.PHONY: words
words: ## Print comments and prose whose grammar has to be read twice, and count them (ONLY=PATHS)
	@tools/words $(ONLY)
words: ONLY =

.PHONY: lint
lint: house ## Check the Go code, its import rules, the rooms' budgets and the protobuf files
	"$$(tools/tool golangci-lint)" run $(PACKAGES)
	"$$(tools/tool buf)" lint

.PHONY: proto
proto: DESCRIPTORS = "$$(tools/tool buf)" build --as-file-descriptor-set --exclude-source-info
proto: ## Generate Go code from the protobuf files, beside them, and descriptors for other languages
	@tools/generate $(PROTO_ROOTS)
	@$(DESCRIPTORS) sdk/proto -o sdk/proto/descriptors.binpb
	@$(DESCRIPTORS) sdk/api/proto -o sdk/api/proto/api.binpb

.PHONY: docs
docs: ## Write the tables of conformance checks, planted bugs, attacks and the API's calls
	@go test -count=1 ./host/internal/apiserver -run '^TestEveryDoor$$' -update
	@go test -count=1 ./sdk/conformance -run '^TestPage$$' -update
	@go test -count=1 ./test/mutants -run '^TestPage$$' -update
	@go test -count=1 ./test/attacks -run '^TestPage$$' -update

.PHONY: man
man: ## Write man pages of the commands to bin/man
	@CGO_ENABLED=0 go test -trimpath -count=1 ./host/internal/cli ./host/cmd/pannier-agent/agentcli -run '^TestReference$$' -man $(CURDIR)/bin/man >/dev/null

.PHONY: generate-check
generate-check: proto ## Fail when the committed generated code is not what the protobuf files say
	@changed=$$(git status --porcelain -- $(PROTO_ROOTS)); if [ -n "$$changed" ]; then \
		echo "generated code is not up to date; run make proto and commit:"; \
		echo "$$changed"; git --no-pager diff -- $(PROTO_ROOTS); exit 1; fi
	@echo "generated code is up to date"

.PHONY: modules
modules: ## Build and vet each module by its own go.mod, without go.work
	@for module in $(filter-out tools tools/%,$(MODULES)); do \
		echo "go build and go vet: $$module"; \
		GOWORK=off go -C "$$module" build -o /dev/null ./... && GOWORK=off go -C "$$module" vet ./...; done

.PHONY: tidy-check
tidy-check: ## Fail when a go.mod or go.sum is not tidy
	@tools/tidy -diff $(MODULES)
	@echo "go.mod and go.sum are tidy"

.PHONY: tidy
tidy: ## Tidy each go.mod and go.sum
	@tools/tidy $(MODULES)

.PHONY: vuln
vuln: ## Look for known vulnerabilities in what is used (needs vuln.go.dev, or GOVULNDB=file:///a/copy/of/it)
	"$$(tools/tool govulncheck)" $(PACKAGES)

.PHONY: clean
clean: ## Remove what was built in the tree (the cache stays)
	rm -rf bin bench dist
