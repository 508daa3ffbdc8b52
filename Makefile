# `make demo` and `make test` do all the set-up themselves; they need Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-full lint types bench clean help

help:
	@echo "make demo       watch a few hundred runs be killed, resumed, checked and exported"
	@echo "make test       lint, types and tests"
	@echo "make test-full  the long forms too: every crash point, soak, fuzzing"
	@echo "make bench      all benchmarks, each against its baseline"
	@echo "make clean      remove what the others made"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "Treadle needs Python 3.11 or newer; %s is %d.%d. Say PYTHON=/path/to/python3.11" % (sys.executable, v[0], v[1]))'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[all,dev]"
	@touch $@

demo: $(STAMP)
	@$(BIN)/treadle demo

test: lint types
	$(BIN)/python -m pytest

test-full: lint types
	TREADLE_FULL=1 $(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis demo
