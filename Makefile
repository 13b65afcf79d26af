# The commands of this project. `make help` lists them.
.PHONY: help demo test build debug filter lint unit engine store chain page-test observe dashboards compose bench bench-scale bench-engine bench-vm soak picture clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 24

demo: ## install what is missing, build, run the whole chain, show 200s and 429s (KEEP=1: until Ctrl-C; REDIS_URL=...: on Redis)
	@tests/setup demo
	@$(MAKE) --no-print-directory debug filter
	@cargo run --quiet --locked -p sluicegate-tests --bin demo

test: ## every test: formatting, lints, units, the engine on a real Redis, the sidecar on Redis as people run it, the chain with a real Envoy, the live page in a real browser, what Prometheus sees, all of it in containers
	@tests/setup test
	@$(MAKE) --no-print-directory lint unit debug filter engine store chain page-test observe compose

build: ## the sidecar as people run it: target/release/sluicegate
	@echo "build: the sidecar, optimized (the first build takes some minutes)"
	@cargo build --quiet --locked --release -p sluicegate

debug: ## the sidecar as the tests run it: target/debug/sluicegate
	@echo "debug: the sidecar (the first build takes a minute or two)"
	@cargo build --quiet --locked -p sluicegate

filter: ## the filter: target/filter/sluicegate.wasm
	@filter/build

lint: ## rustfmt, clippy with warnings denied, luacheck
	@echo "lint: rustfmt, clippy, luacheck"
	@cargo fmt --all --check
	@cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
	@luacheck --quiet --config lua/.luacheckrc lua

unit: ## tests that need nothing but Rust
	@echo "unit: tests that need nothing but Rust"
	@cargo test --quiet --locked

engine: ## the engine against its model, in Rust and in Lua on a real Redis
	@echo "engine: model, Rust and Lua on a real Redis"
	@cargo test --quiet --locked -p sluicegate-tests --test engine

store: debug ## the sidecar's way to Redis: Sentinel, Cluster, TLS, ACLs, silent peers, failovers
	@echo "store: single Redis, Sentinel, Cluster, TLS, ACLs, failovers"
	@cargo test --quiet --locked -p sluicegate-tests --test store

chain: debug filter ## end to end, with a real Envoy and a real Redis
	@echo "chain: end to end with a real Envoy and a real Redis"
	@cargo test --quiet --locked -p sluicegate-tests --test chain

page-test: debug filter ## the live page in a real Chromium, under traffic; screenshots in target/page/
	@echo "page-test: the live page in a real Chromium"
	@cargo test --quiet --locked -p sluicegate-tests --test page

observe: debug filter ## rules, alerts and dashboards against a real Prometheus; draws target/dashboards/*.svg
	@echo "observe: rules, alerts and dashboards against a real Prometheus"
	@cargo test --quiet --locked -p sluicegate-tests --test observe

dashboards: ## deploy/grafana/dashboards/*.json anew, from deploy/grafana/dashboards.yaml
	@SLUICEGATE_WRITE=1 cargo test --quiet --locked -p sluicegate-tests --test observe -- the_dashboards_in_the_repository

compose: ## docker-compose.yml for real, in a Docker engine of its own (two minutes, as root)
	@tests/setup compose
	@$(MAKE) --no-print-directory debug filter
	@echo "compose: docker-compose.yml in a Docker engine of its own"
	@cargo run --quiet --locked -p sluicegate-tests --bin compose

bench: filter ## the whole chain against Envoy without it: a table, a chart and target/bench/end_to_end.json (eight minutes; SLUICEGATE_BEFORE=FILE.wasm: beside an earlier filter; SLUICEGATE_BEFORE_SIDECAR=FILE: beside an earlier sidecar)
	@tests/setup bench
	@$(MAKE) --no-print-directory build
	@cargo run --quiet --locked --release -p sluicegate-tests --bin bench

bench-scale: filter ## 1 to 512 connections, 1 and 2 workers, 1 to 1,000,000 keys: a table, a chart and target/bench/scale.json (six minutes)
	@tests/setup bench
	@$(MAKE) --no-print-directory build
	@cargo run --quiet --locked --release -p sluicegate-tests --bin bench -- scale

bench-vm: filter ## what the filter's own code costs in V8, without Envoy around it (half a minute; needs Node.js)
	@tests/setup bench-vm
	@node tests/bench/vm.mjs target/filter/sluicegate.wasm $(SLUICEGATE_BEFORE)

bench-engine: ## the script against what articles teach, on one Redis: a table and target/bench/engine.json
	@cargo run --quiet --locked --release -p sluicegate-tests --bin bench-engine

soak: ## a million generated calls of each algorithm through model, Rust and Lua
	@SLUICEGATE_STEPS=1000000 cargo test --quiet --locked --release -p sluicegate-tests --test engine agree

picture: debug filter ## README's first picture, from a run: docs/edge.svg
	@cargo run --quiet --locked -p sluicegate-tests --bin picture

clean: ## everything that was built or installed here
	@rm -rf target .tools
