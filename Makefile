# What CI and people run. Each target sets up what it needs; see scripts/setup.sh.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CACHE := $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/cadenza
# One build directory for every checkout of this user; a run from nothing works as well.
export CARGO_TARGET_DIR ?= $(CACHE)/target
export CARGO_TERM_COLOR ?= never
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The fast linker for the many test programs, where there is one. Not for what is installed: that is built with the same
# flags as by a plain `pip install .`, so that each finds the other's work done. Tests of the Python package are tests: they
# take the debug build, which is there minutes earlier.
ifneq ($(shell command -v mold 2>/dev/null),)
test-rust test-python lint: export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUSTFLAGS := -Clink-arg=-fuse-ld=mold
test-rust test-python lint: export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS := -Clink-arg=-fuse-ld=mold
endif

VENV := .venv
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
PY := $(VENV)/bin/python

# llama.cpp's C++ is compiled once for all checkouts and all profiles of this user.
llama_env := LLAMA_LIB_PROFILE=Release CMAKE_GENERATOR=Ninja CMAKE_C_COMPILER_LAUNCHER=ccache \
  CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_DIR=$(CACHE)/ccache CCACHE_NOHASHDIR=1

.PHONY: help setup demo test test-rust test-python test-llama conform bench bench-llama soak lint wheel clean

help:  ## lists the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s $$'\t'

setup:  ## installs system packages, the Python environment and cargo tools that are missing
	@scripts/setup.sh

demo: setup  ## builds the package and runs examples/calculator.py on the embedded default
	@echo "building the package: a few minutes the first time"
	$(PY) -m pip install --quiet .
	$(PY) examples/calculator.py

test: setup  ## everything: Rust, Python, conformance, examples
	@$(MAKE) --no-print-directory test-rust
	@$(MAKE) --no-print-directory test-python
	@$(MAKE) --no-print-directory conform

# Tests and measurements keep away from the user's own store, whatever they forget to say.
test-rust test-python test-llama conform bench bench-llama soak: export XDG_DATA_HOME := $(CURDIR)/$(VENV)/data

test-rust:
	if command -v cargo-nextest >/dev/null; then \
	  cargo nextest run --workspace --exclude cadenza-python --no-fail-fast; \
	else cargo test --workspace --exclude cadenza-python --no-fail-fast; fi
	cargo test --workspace --exclude cadenza-python --doc --quiet
	cargo check -p cadenza-core --no-default-features

test-python:
	$(PY) -m maturin develop --quiet --profile dev
	$(PY) -m mypy --strict bindings/python/cadenza tests/python/typing_user.py
	$(PY) -m mypy.stubtest cadenza --allowlist tests/python/stubtest-allow.txt
	@# The tests' own model server was built with the Rust tests; alone, its test builds it.
	server=$(CARGO_TARGET_DIR)/debug/examples/wire_server; \
	  CADENZA_WIRE_SERVER=$$(test -x $$server && echo $$server || true) $(PY) -m pytest -q tests/python

test-llama:  ## the local model (feature `llama`): its own step, because llama.cpp takes some minutes to compile
	@scripts/setup.sh llama
	$(llama_env) cargo clippy -p cadenza-core --features llama --all-targets --quiet -- -D warnings
	$(llama_env) cargo test -p cadenza-core --features llama --lib --quiet llama
	$(llama_env) cargo test -p cadenza-core --features llama --test llama

conform:  ## every scenario for every host runtime, both program languages and both stores
	for store in memory sqlite; do \
	  for language in lua rhai; do \
	    for runtime in rust lua rhai python; do \
	      $(VENV)/bin/cadenza conform --runtime $$runtime --language $$language --store $$store | tail -1; \
	    done; done; done

bench: setup  ## medians and ratios to a floor, in one run
	cargo build --release -p cadenza-benches
	cargo build --release -p cadenza-core --example wire_server
	$(PY) -m maturin build --release --quiet --out target-wheels
	$(PY) -m pip install --quiet --force-reinstall --no-deps target-wheels/*.whl
	$(CARGO_TARGET_DIR)/release/cadenza-bench
	$(PY) benches/bench.py

bench-llama:  ## the local model against the bare llama.cpp loop, on a tiny model or on the one in CADENZA_GGUF
	@scripts/setup.sh llama
	$(llama_env) cargo run --release -p cadenza-benches --features llama --bin cadenza-bench-llama

soak: setup  ## the long forms of the store's fault tests: kills, power cuts, broken disks, bit flips, many processes
	CADENZA_KILLS=$${CADENZA_KILLS:-3000} cargo test -p cadenza-core --release --test store_crash -- --nocapture
	CADENZA_LONG=1 cargo test -p cadenza-core --release --test store_faults -- --nocapture --test-threads 1 --skip victim
	$(PY) -m maturin develop --release --quiet
	CADENZA_LONG=1 $(PY) -m pytest -q -s tests/python/test_store.py -k another_sqlite_library

lint: setup  ## formatters, linters and type checks; no output means clean
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

wheel: setup  ## builds the release wheel into dist/
	$(PY) -m maturin build --release --out dist

clean:  ## removes what a checkout made; not the shared build directory
	rm -rf $(VENV) dist target-wheels
