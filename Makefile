# Everything that a fresh Debian 12 needs, as root. Each target can be repeated; `make setup` says what it does.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := python3-venv gcc musl-tools crun runc bubblewrap lxcfs erofs-utils mmdebstrap procps util-linux ca-certificates openssl
PROGRAMS := gcc musl-gcc crun runc bwrap lxcfs mkfs.erofs mmdebstrap openssl ps setpriv unshare
VM_PACKAGES := qemu-system-x86 e2fsprogs
VM_PROGRAMS := qemu-system-x86_64 mkfs.ext4
WORKERS ?= 2
export DSEC_CACHE ?= $(HOME)/.cache/opendsec

.DEFAULT_GOAL := help
.PHONY: help setup packages venv chronus base functions demo test test-fast vm-packages test-vm check adapters twin format bench dist clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: packages venv chronus base functions ## system packages, virtual environment, chronus, base images (cached)

packages: ## Debian packages that are not there yet
	@missing=; for program in $(PROGRAMS); do command -v $$program >/dev/null || missing=1; done; \
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || missing=1; \
	if [ -n "$$missing" ]; then \
	  echo "setup: installing $(PACKAGES)"; apt-get update -q && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $(PACKAGES); \
	else echo "setup: system packages are there"; fi

venv: $(VENV)/.installed ## virtual environment with opendsec, editable, and the development tools

$(VENV)/.installed: pyproject.toml
	@echo "setup: virtual environment in $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[all]' --group dev
	@touch $@

chronus: venv ## the agent inside, and what isolates calls: static, compiled once into the cache
	@echo "setup: chronus is $$($(BIN)/python -m dsec.bus.chronus.build)"
	@echo "setup: fncall is $$($(BIN)/python -m dsec.plugins.fncall.build)"

base: venv ## the base image, made once into the cache and verified at each use
	@echo "setup: base image is $$($(BIN)/python -m dsec.plugins.images)"

functions: venv ## the image of stateless calls (numpy, compilers), made once into the cache
	@echo "setup: image of calls is $$($(BIN)/python -m dsec.plugins.images functions)"

demo: setup ## the main job: rollouts of real software tasks on containers -> build/demo/report.json
	$(BIN)/python -m examples.swe_rollouts --report build/demo/report.json

test: setup ## all tests (needs root): some at a time, then those that need the machine for themselves
	$(BIN)/python -m pytest -m 'not alone' -n $(WORKERS) --dist loadscope --no-loadscope-reorder
	$(BIN)/python -m pytest -m alone

test-fast: setup ## tests that need no node
	$(BIN)/python -m pytest -m 'not node and not kill and not slow'

vm-packages:
	@for program in $(VM_PROGRAMS); do command -v $$program >/dev/null || missing=1; done; \
	if [ -n "$$missing" ]; then echo "test-vm: installing $(VM_PACKAGES)"; apt-get update -q && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $(VM_PACKAGES); fi

test-vm: setup vm-packages ## what needs unified cgroups, in a virtual machine (docs/testbed.md) -> build/test-vm.xml
	$(BIN)/python -m tests.vm --make
	$(BIN)/python -m pytest tests/vm -m vm
	$(BIN)/python -m tests.vm --junitxml build/test-vm.xml

check: venv ## ruff, mypy strict, codespell, project metadata
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/validate-pyproject pyproject.toml

adapters: venv ## environments of other people's harnesses for the tests of the adapters (cached)
	$(BIN)/python -m tests.adapters.venvs

twin: venv ## write dsec.sync anew from the sources of the SDK
	$(BIN)/python -m dsec.sdk.twin.generate

format: venv ## rewrite the sources in house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup ## every benchmark of SPECIFICATION.md, one table each
	for name in container exec stream control batch hotplug fncall session; do $(BIN)/dsec bench $$name || exit 1; done

dist: venv ## sdist -> wheel -> clean virtual environment -> every entry point loads
	$(BIN)/python -m pytest tests/packaging -m ''

clean: ## what was built in the checkout; the cache stays
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache
