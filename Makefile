# Everything a contributor needs. "make" alone lists the targets.

GO ?= go
# For "make demo", "make bench", "make bench-peers" and "make dist": make demo ARGS="--orders 500"
ARGS ?=
# For "make test" and "make test-race": one package, a count, ...
PKG ?= ./...
TESTFLAGS ?=
# The race detector; make test-all RACE= runs without it, with a quarter less CPU time. "make test" never has it.
RACE ?= -race
# For "make chaos": what has to be there. Empty skips the faults that cannot be made.
REQUIRE ?= all
# For "make test-matrix".
MAJORS ?=
PACKAGES ?=
# Per package, and far above what any needs: it is there to get the stacks of a
# test that hangs before CI gives up on the whole run.
TEST_TIMEOUT ?= 20m
# Per fuzz target.
FUZZTIME ?= 20s

# Releases of the linters are built with our own Go, below .cache, and built again
# when these lines change.
GOLANGCI_VERSION := v2.15.0
ACTIONLINT_VERSION := v1.7.12
GOVULNCHECK_VERSION := v1.9.0
GOTESTSUM_VERSION := v1.13.0
CACHE := $(CURDIR)/.cache
GOLANGCI := $(CACHE)/bin/golangci-lint-$(GOLANGCI_VERSION)
ACTIONLINT := $(CACHE)/bin/actionlint-$(ACTIONLINT_VERSION)
ENT := integration/writers/go/ent/client.go
export GOTESTSUM := $(CACHE)/bin/gotestsum-$(GOTESTSUM_VERSION)

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: build ## show notifyd at work, with a PostgreSQL of its own
	CGO_ENABLED=0 $(GO) build -o bin/with ./internal/lab/privateserver/pginstall/cmd/with
	bin/with -also NOTIFYD_DEMO_SPARE_URL=shop bin/notifyd demo $(ARGS)

.PHONY: build
build: ## build bin/notifyd
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/notifyd ./cmd/notifyd

.PHONY: dist
dist: ## build the archives of a release into dist/ (ARGS="-platforms linux/amd64")
	$(GO) run ./internal/dist/cmd/dist $(ARGS)

.PHONY: setup
setup: ## install what the tests need, where it is missing
	./scripts/setup

.PHONY: setup-all
setup-all: ## install what all tests need, where it is missing
	./scripts/setup all

# One package gets PostgreSQL; what else it needs, "make setup" installs. With -short, testenv.Long skips. "make lint" vets.
# Many packages wait for servers most of the time, so more of them run at once than there are cores.
.PHONY: test
test: $(GOTESTSUM) ## test each promise and command (PKG=./sql: one package)
	./scripts/setup $(if $(filter ./...,$(PKG)),,base)
	./scripts/test -short -vet=off -p $$(($$(getconf _NPROCESSORS_ONLN) * 3 / 2)) -timeout $(TEST_TIMEOUT) $(TESTFLAGS) -- $(PKG)
	$(if $(filter ./...,$(PKG)),$(MAKE) test-outside RACE=)

.PHONY: test-race
test-race: $(GOTESTSUM) ## run the long tests too, with the race detector (PKG=./sql: one package)
	./scripts/setup $(if $(filter ./...,$(PKG)),,base)
	./scripts/test $(RACE) -timeout $(TEST_TIMEOUT) $(TESTFLAGS) -- $(PKG)
	$(if $(filter ./...,$(PKG)),$(MAKE) test-outside)

# A module that imports notifyd as its users do, without the internal packages.
.PHONY: test-outside
test-outside: $(GOTESTSUM)
	CGO_ENABLED=0 $(GO) build -o bin/with ./internal/lab/privateserver/pginstall/cmd/with
	cd integration/outside && $(GO) vet ./... && TEST_JSON= ../../bin/with ../../scripts/test $(RACE) -timeout $(TEST_TIMEOUT) $(TESTFLAGS) -- ./...

.PHONY: test-all
test-all: test-race test-rest ## run all tests, as CI does

.PHONY: test-rest
test-rest: setup-all $(GOTESTSUM) $(ENT) ## run the tests that "make test-race" leaves out: browser, clouds, languages, deployment, bench
	./scripts/test-rest $(RACE) -timeout $(TEST_TIMEOUT) $(TESTFLAGS)
	cd integration/writers/go && $(GO) vet ./...
	cd scripts/pubsub && $(GO) vet ./...
	cd deploy/check && $(GO) vet ./... && ../../scripts/test $(RACE) -timeout $(TEST_TIMEOUT) $(TESTFLAGS) -- ./...
	cd handlers/watermill && $(GO) vet ./... && ../../scripts/test $(RACE) -timeout $(TEST_TIMEOUT) $(TESTFLAGS) -- ./...
	cd examples/grpc && $(GO) vet ./... && ../../scripts/test $(RACE) -timeout $(TEST_TIMEOUT) $(TESTFLAGS) -- ./...

$(GOTESTSUM):
	GOBIN=$(CACHE)/bin $(GO) install gotest.tools/gotestsum@$(GOTESTSUM_VERSION)
	mv $(CACHE)/bin/gotestsum $@

# The client of ent is generated, and not part of the repository.
$(ENT): integration/writers/go/schema/order.go
	cd integration/writers/go && $(GO) generate .

.PHONY: chaos
chaos: setup ## let everything fail under load, and print what came of it
	NOTIFYD_CHAOS=long NOTIFYD_TEST_REQUIRE=$(REQUIRE) $(GO) test -count=1 -v -timeout 60m -run '^TestChaos$$' $(TESTFLAGS) ./integration/chaos

# MAJORS="14 18" picks versions, PACKAGES="./internal/store" packages.
.PHONY: test-matrix
test-matrix: setup ## run the tests of the database with PostgreSQL 14 to 18
	TESTFLAGS="$(TESTFLAGS)" TEST_TIMEOUT="$(TEST_TIMEOUT)" PACKAGES="$(PACKAGES)" ./scripts/test-matrix $(MAJORS)

.PHONY: lint
lint: lint-format lint-mod lint-code lint-workflows ## check format, go.mod, code and workflows

.PHONY: lint-format
lint-format:
	@files=$$(find . -path ./.cache -prune -o -name '*.go' -exec gofmt -l {} +); \
	if [ -n "$$files" ]; then echo "not formatted by gofmt:"; echo "$$files"; exit 1; fi

.PHONY: lint-mod
lint-mod:
	$(GO) mod tidy -diff

.PHONY: lint-code
lint-code: $(GOLANGCI) $(ENT)
	$(GOLANGCI) run --timeout 10m
	cd handlers/watermill && $(GOLANGCI) run --config ../../.golangci.yaml --timeout 10m
	cd scripts/pubsub && $(GOLANGCI) run --config ../../.golangci.yaml --timeout 10m
	cd deploy/check && $(GOLANGCI) run --config ../../.golangci.yaml --timeout 10m
	cd examples/grpc && $(GOLANGCI) run --config ../../.golangci.yaml --timeout 10m
	cd integration/outside && $(GOLANGCI) run --config ../../.golangci.yaml --timeout 10m
	cd integration/writers/go && $(GOLANGCI) run --config ../../../.golangci.yaml --timeout 10m

# golangci-lint runs vet too; this target is for a commit, where it answers in seconds.
.PHONY: lint-vet
lint-vet: $(ENT)
	$(GO) vet -tags testall ./...
	cd handlers/watermill && $(GO) vet ./...
	cd scripts/pubsub && $(GO) vet ./...
	cd deploy/check && $(GO) vet ./...
	cd examples/grpc && $(GO) vet ./...
	cd integration/outside && $(GO) vet ./...
	cd integration/writers/go && $(GO) vet ./...

# Without shellcheck and pyflakes, which actionlint runs where they are installed: it
# would find more on one machine than on another.
.PHONY: lint-workflows
lint-workflows: $(ACTIONLINT)
	$(ACTIONLINT) -shellcheck= -pyflakes=

$(GOLANGCI):
	GOBIN=$(CACHE)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	mv $(CACHE)/bin/golangci-lint $@

$(ACTIONLINT):
	GOBIN=$(CACHE)/bin $(GO) install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)
	mv $(CACHE)/bin/actionlint $@

# Asks the database of known vulnerabilities, which .ci/run must do without.
.PHONY: vuln
vuln: ## look for known vulnerabilities in what we call
	$(GO) run golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION) ./...

.PHONY: attack
attack: setup $(GOTESTSUM) ## run the tests that SECURITY.md names: what each role can do at worst
	./scripts/attack $(RACE) -timeout $(TEST_TIMEOUT) $(TESTFLAGS)

# With a relay that delivers for five minutes, and Chromium.
.PHONY: picture
picture: ## take docs/console.png, the picture of README.md, from a relay at work
	NOTIFYD_TEST_PICTURE=$(CURDIR)/docs/console.png NOTIFYD_TEST_REQUIRE=chromium $(GO) test -count=1 -timeout 15m -tags testall -run '^TestConsolePicture$$' ./cmd/notifyd

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME each
	./scripts/fuzz $(FUZZTIME)

.PHONY: bench
bench: ## measure notifyd here (ARGS="latency --rate 2000"; without, what there is)
	$(GO) run ./cmd/bench $(ARGS)

# A module of its own, which "make test" and "make lint" pass by.
.PHONY: bench-peers
bench-peers: ## compare with other systems on the same PostgreSQL (ARGS="--only queue,river")
	cd cmd/bench/peers && $(GO) run . $(ARGS)

.PHONY: clean
clean: ## remove what was built (the downloads in .cache stay)
	rm -rf bin dist
	$(GO) clean -testcache
