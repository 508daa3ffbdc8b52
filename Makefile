# `make demo` and `make test` do all the set-up themselves; they need Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What is installed: for the demo Treadle alone, for everything else also its extras and what the tests need.
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
# Options for pytest: make test PYTEST_ARGS="-k shell"
PYTEST_ARGS ?=

# Tests start thousands of processes, which would compile the same files again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: docs demo test test-full fuzz lint types pytest bubblewrap bench clean help

help:
	@echo "make demo       watch a few hundred runs be killed, resumed, checked and exported"
	@echo "make test       lint, types and tests, side by side"
	@echo "make lint       ruff alone; make types: mypy alone; make pytest: the tests alone"
	@echo "make test-full  the long forms too: every crash point, soak, fuzzing"
	@echo "make fuzz       the text formats, coverage-guided, SECONDS=600 each"
	@echo "make docs       build the documentation as a site, in site/"
	@echo "make bench      all benchmarks, each against its baseline"
	@echo "make clean      remove what the others made"

# The names of the packages are shown as pip finds them, and its whole output if it fails. An environment whose
# making was interrupted has no pip, and is made anew.
define INSTALL
@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "Treadle needs Python 3.11 or newer; %s is %d.%d. Say PYTHON=/path/to/python3.11" % (sys.executable, v[0], v[1]))'
@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	echo "making a virtual environment in $(VENV)"; $(PYTHON) -m venv --clear $(VENV); }
@echo "installing treadle$(EXTRAS) into $(VENV):"
@{ $(BIN)/python -m pip install --disable-pip-version-check --editable ".$(EXTRAS)" 2>&1 || echo "pip failed"; } | \
	tee $(VENV)/install.log | awk ' \
	/^ *Collecting / { sub(/[^A-Za-z0-9_.-].*/, "", $$2); if (!seen[$$2]++) { printf " %s", $$2; fflush() } } \
	/^Installing collected packages/ { print "\nwriting the packages"; fflush() } \
	/^pip failed$$/ { failed = 1 } END { exit failed }' || { echo; cat $(VENV)/install.log; exit 1; }
endef

$(STAMP): EXTRAS = [all,dev]
$(STAMP): pyproject.toml
	$(INSTALL)
	@touch $@ $(DEMO_STAMP)

$(DEMO_STAMP): pyproject.toml
	$(INSTALL)
	@touch $@

demo: $(DEMO_STAMP)
	@$(BIN)/treadle demo

LINT = $(BIN)/ruff check . && $(BIN)/ruff format --check .
TYPES = $(BIN)/mypy
PYTEST = $(BIN)/python -m pytest -n auto $(PYTEST_ARGS)

# All three run to their ends, whatever the others say. What ruff and mypy wrote follows what pytest writes.
test test-full: bubblewrap
	@{ $(LINT); } >$(VENV)/lint.log 2>&1 & lint=$$!; \
	{ $(TYPES); } >$(VENV)/types.log 2>&1 & types=$$!; \
	echo "ruff, mypy and pytest run side by side"; \
	$(if $(filter test-full,$@),TREADLE_FULL=1) $(PYTEST) && tests=passed || tests=FAILED; \
	wait $$lint && lint=passed || lint=FAILED; cat $(VENV)/lint.log; \
	wait $$types && types=passed || types=FAILED; cat $(VENV)/types.log; \
	echo "ruff $$lint, mypy $$types, pytest $$tests"; \
	test "$$lint $$types $$tests" = "passed passed passed"

lint: $(STAMP)
	$(LINT)

types: $(STAMP)
	$(TYPES)

pytest: bubblewrap
	$(PYTEST)

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

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "open site/index.html"

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz demo
