# Everything runs in .venv, which each target makes or refreshes first. `make` alone lists the targets.

PYTHON ?= $(shell for p in python3.11 python3 python; do command -v $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
JOBS ?= 2
SOAK_SECONDS ?= 600
SOAK_SEED ?= 0
# Two workers on two cores: BLAS threads on top of them only get in each other's way.
TEST_ENV := OPENBLAS_NUM_THREADS=1
DOCS_ENV := JOBS=$(JOBS) NO_MKDOCS_2_WARNING=1

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench soak licences docs docs-serve clean

help:
	@echo "make demo    fit bundled data, print summary, ELBO and ledger, write a picture"
	@echo "make test    lint, types, import contract, all tests (JOBS=2 workers)"
	@echo "make lint    the same without the tests"
	@echo "make format  rewrite the code in the house format"
	@echo "make bench   what one iteration costs beyond its gradients"
	@echo "make licences  the licences of all dependencies; fails on unknown ones and strong copyleft"
	@echo "make soak    kills, damaged files, hostile inputs, certificates and an oracle (SOAK_SECONDS=600, SOAK_SEED=0)"
	@echo "make docs    the site in build/site, all code of its pages run (make docs-serve: at http://127.0.0.1:8000)"
	@echo "make clean   remove what the other targets made, except $(VENV)"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python found: install Python 3.11 or later, or pass PYTHON=..."; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is older than 3.11: pass PYTHON=/path/to/python3.11"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

# One stamp an installation: it is older than these files exactly when the environment is out of date.
$(VENV)/.installed-dev: pyproject.toml src/provi_lab/pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[dev]' --editable ./src/provi_lab
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-models: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[models]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/provi demo

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

test: lint
	$(TEST_ENV) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-models
	$(BIN)/python benchmarks/overhead.py

licences: $(VENV)/.installed-dev
	$(BIN)/python -m pip check
	$(BIN)/python benchmarks/licences.py

soak: $(VENV)/.installed-dev
	$(TEST_ENV) $(BIN)/python -m provi_lab.soak --seconds $(SOAK_SECONDS) --seed $(SOAK_SEED) --jobs $(JOBS)

docs: $(VENV)/.installed-dev
	$(DOCS_ENV) $(BIN)/mkdocs build --strict --quiet
	@echo "The site: build/site/index.html"

docs-serve: $(VENV)/.installed-dev
	$(DOCS_ENV) $(BIN)/mkdocs serve

clean:
	rm -rf build dist out .pytest_cache .ruff_cache .import_linter_cache src/*.egg-info src/provi_lab/build \
		src/provi_lab/*.egg-info
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
