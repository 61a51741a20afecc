# make demo [PROFILE=a100-40gb] [COUNT=4]   the whole way of a claim on simulated cards

PYTHON ?= python3
VENV ?= .venv
PROFILE ?= h100-80gb
COUNT ?= 8

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
CONSTRAINTS := $(wildcard constraints.txt)
CONSTRAIN := $(addprefix -c ,$(CONSTRAINTS))

.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n 's/^# make /make /p' $(firstword $(MAKEFILE_LIST))

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
		"Python 3.11 or newer is needed, %s is %s; set PYTHON=…" % (sys.executable, sys.version.split()[0]))'
	$(PYTHON) -m venv $(VENV)

# What is needed to run, nothing to develop with.
$(VENV)/.run: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(PIP) install $(CONSTRAIN) -e .
	@touch $@

.PHONY: setup-run
setup-run: $(VENV)/.run

.PHONY: demo
demo: $(VENV)/.run
	@$(BIN)/aliquot demo --profile $(PROFILE) --count $(COUNT)

# make setup     everything to develop with, in .venv
$(VENV)/.dev: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(PIP) install --upgrade 'pip>=25.1'
	$(PIP) install $(CONSTRAIN) -e . --group dev
	@touch $@ $(VENV)/.run

.PHONY: setup
setup: $(VENV)/.dev

# make test      lint, types, import rules, unit tests with coverage
.PHONY: test lint types imports unit
test: lint types imports unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports --no-logo

WORKERS ?= 2
unit: $(VENV)/.dev
	rm -f .coverage .coverage.*
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --cov --cov-report=
	$(BIN)/coverage report --fail-under=95
	$(BIN)/coverage report --fail-under=100 \
		--include='driver/model/*,driver/plan/*,driver/apply/*'

# make e2e       a real Kubernetes node on this machine (Linux, root; builds what it needs)
.PHONY: e2e e2e-build kind-build
e2e: $(VENV)/.dev
	$(BIN)/python -m e2e $(ARGS)

# What make e2e needs and takes minutes, slowest first; then what make kind needs beside it.
e2e-build: $(VENV)/.dev
	$(BIN)/python -m e2e.cluster.build 1.37 api-1.34
	$(BIN)/python -m e2e.image.build

kind-build: $(VENV)/.dev
	$(BIN)/python -m e2e.cluster.build kind
	$(BIN)/python -m e2e.kind image

# make kind      a kind cluster of three nodes, the chart with simulated cards, its tests (root)
# make kind-up   the same, left there to be tried; make kind-down deletes it
.PHONY: kind kind-up kind-down image
kind: $(VENV)/.dev
	$(BIN)/python -m e2e.kind $(ARGS)

kind-up kind-down: kind-%: $(VENV)/.dev
	$(BIN)/python -m e2e.kind $*

# make image     the driver's image as an OCI archive; prints where it is
image: $(VENV)/.dev
	@$(BIN)/python -m e2e.image.build

# make soak      the long versions: outages of 10 minutes, churn of an hour (MINUTES=60)
MINUTES ?= 60
.PHONY: soak
soak: $(VENV)/.dev
	$(BIN)/python -m e2e.soak --minutes $(MINUTES) $(ARGS)

# make bench     the numbers of docs/benchmarks.md, on the local cluster
.PHONY: bench
bench: $(VENV)/.dev
	$(BIN)/python -m bench all $(ARGS)

# make proto     generate the gRPC code anew (an environment of its own: see the reference)
.PHONY: proto
proto:
	$(PYTHON) -m venv $(VENV)-proto
	$(VENV)-proto/bin/python -m pip install -q grpcio-tools==1.80.0 mypy-protobuf==5.1.0
	PATH=$(CURDIR)/$(VENV)-proto/bin:$$PATH $(VENV)-proto/bin/python -m grpc_tools.protoc -I. \
		--python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:. \
		kubeletplugin/proto/*.proto
