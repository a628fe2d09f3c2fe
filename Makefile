# Two commands set everything up: `make demo` and `make test`. The rest is for people who change the code.
#
#   PYTHON=python3.12      another interpreter (3.11 or newer)
#   JOBS=4                 how many tests at once (2; a test may use two cores for a moment)
#   PIP_ARGS="..."         more options for pip, such as an index with CPU builds of torch (see README)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_ARGS ?=
SEEDS ?= 2000
CONSTRAINTS := .ci/constraints.txt
INSTALLED := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest
JOBS ?= 2
AT_ONCE := -n $(JOBS) --dist loadfile

.PHONY: demo test check lint types imports reference thorough unit integration sim chaos containers e2e gpu-check bench clean help

help: ## what can be done here
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Tenure needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c $(CONSTRAINTS) \
		-e '.[worker,images,embedded,demo,dev]'
	@touch $@

demo: $(INSTALLED) ## the main job end to end on this machine: files, proof, approval, serving, audit
	$(BIN)/tenure demo

test: $(INSTALLED) ## unit, contract, integration and end-to-end tests
	$(PYTEST) $(AT_ONCE) -m 'not thorough' tests/unit tests/golden tests/contract tests/simulation \
		--ignore tests/simulation/test_mutations.py tests/integration tests/e2e

thorough: $(INSTALLED) ## further architectures of each adapter, and a model of every task all the way
	$(PYTEST) $(AT_ONCE) -m thorough tests/unit tests/contract tests/integration tests/e2e

check: lint types imports reference test thorough sim chaos containers ## everything CI runs

lint: $(INSTALLED) ## ruff, rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED) ## mypy --strict
	$(BIN)/mypy

imports: $(INSTALLED) ## who may import whom
	$(BIN)/lint-imports --no-cache

reference: $(INSTALLED) ## docs/reference is what the code says
	$(BIN)/python -m schemas.generate --check

unit: $(INSTALLED) ## the tests without I/O
	$(PYTEST) $(AT_ONCE) tests/unit tests/golden

integration: $(INSTALLED) ## the tests on embedded servers
	$(PYTEST) $(AT_ONCE) tests/contract tests/integration

e2e: $(INSTALLED) ## the command line, as a user runs it
	$(PYTEST) tests/e2e

sim: $(INSTALLED) ## simulated stories, SEEDS of them, and the mutations they must notice
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)
	$(PYTEST) tests/simulation/test_mutations.py

chaos: $(INSTALLED) ## kill real processes under load
	$(PYTEST) tests/chaos

containers: $(INSTALLED) ## PostgreSQL, NATS and our images in containers; needs a Docker engine
	$(PYTEST) tests/containers

gpu-check: $(INSTALLED) ## on a machine with an NVIDIA GPU: load, measure, unload there, and write gpu-evidence.json
	$(BIN)/python -m tests.gpu

bench: $(INSTALLED) ## measure, and write benchmarks/RESULTS.md
	PIP_ARGS="$(PIP_ARGS)" $(BIN)/python -m benchmarks

clean: ## remove what the other targets made
	rm -rf $(VENV) .tenure build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
