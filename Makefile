# `make demo` and `make test` do all the set-up themselves; they need Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-full fuzz lint types bubblewrap bench clean help

help:
	@echo "make demo       watch a few hundred runs be killed, resumed, checked and exported"
	@echo "make test       lint, types and tests"
	@echo "make test-full  the long forms too: every crash point, soak, fuzzing"
	@echo "make fuzz       the text formats, coverage-guided, SECONDS=600 each"
	@echo "make bench      all benchmarks, each against its baseline"
	@echo "make clean      remove what the others made"

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "Treadle needs Python 3.11 or newer; %s is %d.%d. Say PYTHON=/path/to/python3.11" % (sys.executable, v[0], v[1]))'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[all,dev]"
	@touch $@

demo: $(STAMP)
	@$(BIN)/treadle demo

test: lint types bubblewrap
	$(BIN)/python -m pytest

test-full: lint types bubblewrap
	TREADLE_FULL=1 $(BIN)/python -m pytest

# Coverage-guided, so it needs a package of its own, which has wheels for Linux and macOS.
SECONDS ?= 600
fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[fuzz]"
	@mkdir -p .fuzz
	@for format in $$($(BIN)/python -c 'from treadle.formats import FORMATS; print(*FORMATS.names())'); do \
		echo "fuzzing $$format for $(SECONDS) s"; \
		$(BIN)/python -m tests.fuzz.formats $$format $(SECONDS) -artifact_prefix=.fuzz/ 2>.fuzz/$$format.log || \
		{ tail -40 .fuzz/$$format.log; exit 1; }; \
	done

# The tests run commands in sandboxes of bubblewrap. Where it is missing it is put beside Python, with lists of
# packages of its own, so that it needs no root and leaves the system as it is.
APT := $(VENV)/apt
APT_GET = apt-get -qq -o Dir::State::lists="$$PWD/lists" -o Dir::Cache="$$PWD/cache" -o APT::Sandbox::User=root

bubblewrap: $(STAMP)
	@if test "$$(uname)" != Linux || command -v bwrap >/dev/null || test -x $(BIN)/bwrap; then exit 0; fi; \
	echo "fetching bubblewrap, which is not installed, into $(VENV)"; \
	mkdir -p $(APT)/lists/partial $(APT)/cache/archives/partial && \
	(cd $(APT) && { apt-get -qq download bubblewrap 2>/dev/null || { $(APT_GET) update && $(APT_GET) download bubblewrap; }; } && \
	dpkg -x bubblewrap_*.deb .) && cp $(APT)/usr/bin/bwrap $(BIN)/bwrap && rm -rf $(APT) || \
	echo "bubblewrap could not be fetched, and tests of the shell will fail: install it with your system's package manager"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz demo
