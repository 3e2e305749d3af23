# Everyday commands. Each one installs what it needs (scripts/bootstrap), configures its preset once and
# builds with ninja; a second call does only what changed.
#
# `run` has a preset of its own, build/run, so that a machine with nothing but a compiler can run the
# examples: the release preset also holds tests and benchmarks and needs their libraries. ccache makes the
# second compile cheap.

SHELL := /bin/bash
JOBS ?= $(shell nproc)
HOST := $(shell uname -m)
SOURCES = $(shell find include src c apps python tests bench examples -name '*.h' -o -name '*.cc' \
  -o -name '*.cu')

.PHONY: help run examples program test test-release test-long test-aarch64 test-vllm bench bench-peers
.PHONY: test-python test-sanitizers format tidy clean
.DEFAULT_GOAL := help

help:
	@echo "make run           two nodes that share blocks; then four tiny engines with tiers, the router, its"
	@echo "                   page, and what that gains; a minute"
	@echo "                   (DURATION=seconds WORKERS=engines STAY=1: traffic goes on until Ctrl-C)"
	@echo "make examples      prefix reuse, eviction, index, tiers, nodes, an engine"
	@echo "make program       build/run/bin/ashlar (ashlar serve …) and tiny_server, with every component"
	@echo "make test          every test: plain, then ThreadSanitizer, then AddressSanitizer"
	@echo "make test-release  every test against what ships, fully optimised, with the benchmarks parsed"
	@echo "make test-sanitizers  unit tests, hostile clients: AddressSanitizer; threads: ThreadSanitizer"
	@echo "make test-long     make test with 300 seconds for every stress and fuzz loop, and all rounds over UCX"
	@echo "make test-python   the Python package alone, and for the newest other Python of this machine"
	@echo "make test-aarch64  cross build, unit tests under qemu-user"
	@echo "make test-vllm     beside the real vLLM, on the CPU (installs some 6 GB)"
	@echo "make bench         build and run the benchmarks"
	@echo "make bench-peers   the benchmarks beside published packages of the field (needs Rust, Python 3.11)"
	@echo "make format        clang-format over all C++ files"
	@echo "make tidy          thread-safety analysis and clang-tidy"
	@echo "make clean         remove build/"

# Configures a preset when it is new or the presets changed; the build itself follows changes of CMake files.
build/%/build.ninja: CMakePresets.json
	@cmake --preset $* --log-level=NOTICE --no-warn-unused-cli
	@touch $@

# $(call stage,preset,targets[,test preset]): configures, builds the targets, runs the tests of the preset,
# closes with one line. One test more than there are cores: many wait for others.
define stage
	@$(MAKE) -s --no-print-directory build/$(1)/build.ninja
	@start=$$SECONDS; \
	cmake --build --preset $(1) -j $(JOBS) --target $(2) && built=$$SECONDS && \
	ctest --preset $(or $(3),$(1)) -j $$(( $(JOBS) + 1 )) --progress && \
	echo "== $(1): all tests passed; $$((built - start)) s to build, $$((SECONDS - built)) s to test"
endef

# The main job: two nodes that share blocks; engines with tiers, the router in front of them, its page, and
# what that gains.
DURATION ?= 60
WORKERS ?= 4
run: program
	@cmake --build --preset run -j $(JOBS) --target two_nodes -- --quiet
	@echo "== two nodes: one computes blocks, the other pulls them (docs/remote.md)"
	@build/run/bin/two_nodes
	@echo
	@echo "== engines behind a router (docs/run.md)"
	@build/run/bin/ashlar run --duration $(DURATION) --workers $(WORKERS) $(if $(STAY),--stay)

examples:
	@scripts/bootstrap run
	@$(MAKE) -s --no-print-directory build/run/build.ninja
	@cmake --build --preset run -j $(JOBS) \
	  --target prefix_reuse multi_turn router_index tiered_chat two_nodes tiny_engine -- --quiet
	@for example in prefix_reuse multi_turn router_index tiered_chat two_nodes tiny_engine; do \
	  build/run/bin/$$example && echo || exit 1; \
	done

# The program with everything that Debian has for it: HTTP, ZeroMQ, NATS.
program:
	@scripts/bootstrap program
	@mkdir -p build
	@cmake --preset run --log-level=NOTICE --no-warn-unused-cli > build/run-configured.log
	@cmake --build --preset run -j $(JOBS) --target ashlar_program tiny_server -- --quiet

test:
	@scripts/bootstrap test
	@$(MAKE) -s --no-print-directory $(foreach preset,test tsan asan,build/$(preset)/build.ninja)
	$(call stage,test,all)
	$(call stage,tsan,ashlar_stage_tsan_tests)
	$(call stage,asan,ashlar_stage_asan_tests)

# What `make test` runs under one sanitizer or none, under both.
test-sanitizers:
	@scripts/bootstrap test
	$(call stage,tsan,ashlar_concurrency_tests,tsan-all)
	$(call stage,asan,ashlar_unit_tests ashlar_hostile_tests,asan-all)

# Everything against what ships, which `make test` compiles with -O1.
test-release:
	@scripts/bootstrap test
	$(call stage,release,all ashlar_unit_tests ashlar_concurrency_tests)

# And those that a sanitizer keeps from most of their rounds, without one.
test-long: export ASHLAR_TEST_SECONDS = 300
test-long: test
	$(call stage,test,ashlar_long_tests,test-long)

test-python:
	@scripts/bootstrap test
	@$(MAKE) -s --no-print-directory build/release/build.ninja
	@cmake --build --preset release -j $(JOBS) --target ashlar_wheel
	@ASHLAR_NEWER_PYTHON=1 ctest --test-dir build/release -R '^python' --output-on-failure
	@JOBS=$(JOBS) scripts/python_asan

ifeq ($(HOST),aarch64)
test-aarch64:
	@echo "this machine is aarch64: its own release tests are the aarch64 tests"
	@scripts/bootstrap test
	$(call stage,release,all)
else
test-aarch64:
	@scripts/bootstrap aarch64
	$(call stage,aarch64,ashlar_unit_tests)
endif

# Not part of `test`: it needs Python packages of gigabytes.
VLLM_PYTHON = $${ASHLAR_VLLM_PYTHON:-build/vllm-venv/bin/python3}
test-vllm:
	@scripts/bootstrap test
	@scripts/vllm_env
	@$(MAKE) -s --no-print-directory build/release/build.ninja
	@cmake --build --preset release -j $(JOBS) --target vllm_check vllm_never_answers ashlar_program ashlar_wheel
	@$(VLLM_PYTHON) tests/vllm/run_vllm.py build/release/bin/vllm_check
	@$(VLLM_PYTHON) tests/vllm/run_serve.py build/release/bin/ashlar
	@scripts/vllm_site
	@PYTHONPATH=$(CURDIR)/build/vllm-site $(VLLM_PYTHON) tests/vllm/run_conformance.py build/release/bin/ashlar
	@PYTHONPATH=$(CURDIR)/build/vllm-site $(VLLM_PYTHON) -B -m unittest tests/vllm/test_transformers.py
	@PYTHONPATH=$(CURDIR)/build/vllm-site $(VLLM_PYTHON) -B -m unittest tests/vllm/test_page_copies.py
	@PYTHONPATH=$(CURDIR)/build/vllm-site $(VLLM_PYTHON) -B examples/python/torch_tensors.py

bench:
	@scripts/bootstrap bench
	@$(MAKE) -s --no-print-directory build/release/build.ninja
	@cmake --build --preset release -j $(JOBS) --target ashlar_benchmarks
	@shopt -s nullglob; for program in build/release/bin/*_bench; do \
	  here=; case "$$program" in */event_bench) here=--here ;; esac; \
	  echo "== $$program"; "$$program" $$here || exit 1; \
	done
	@echo "== threads"; build/release/bin/block_bench --scaling

bench-peers:
	@bench/peers/run --check
	@bench/peers/run_vllm --check
	@bench/peers/run_index --check
	@bench/peers/run_remote --check
	@bench/peers/run_proxy --check
	@scripts/bootstrap bench
	@bench/peers/run
	@bench/peers/run_vllm
	@bench/peers/run_index
	@bench/peers/run_remote
	@bench/peers/run_proxy

format:
	@scripts/bootstrap format
	@clang-format-19 -i $(SOURCES)

tidy:
	@scripts/bootstrap tidy
	@$(MAKE) -s --no-print-directory build/tidy/build.ninja
	@cmake --build --preset tidy -j $(JOBS)
	@echo "== tidy: no findings"

clean:
	@rm -rf build
