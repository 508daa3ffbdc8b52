# `make demo` and `make test` install what they need. They require Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The demo installs only Treadle. Everything else also installs the extras and the packages for the tests.
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
# Options for pytest: make test PYTEST_ARGS="-k shell"
PYTEST_ARGS ?=

# Options for the example: make prove PROVE_ARGS="--out FOLDER --device cuda"
PROVE_ARGS ?=

# The environments of real engines, vLLM and SGLang, for test-engines and test-full. Variables of the tests:
# TREADLE_WORKER_MODEL, the folder of a model that calls tools; TREADLE_FULL=1, the long forms.
ENGINES ?= .venv-engines
SGLANG ?= .venv-sglang
# The environment of the trainers, for test-full.
TRAINERS ?= .venv-trainers
# The packages of the frameworks that the gateway is tested with.
CLIENTS ?= .venv-clients
# The packages of the program that fuzzes the API.
API_FUZZER ?= .venv-fuzzer

# Tests start thousands of processes, which would compile the same files again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: docs viewer demo prove train-demo test test-full test-engines engines sglang trainers clients fuzz fuzz-api lint types pytest bubblewrap bench clean help

help:
	@echo "make demo       from a topic to a verified dataset, killed in the middle and continued, offline"
	@echo "make prove      rows, a model trained on them from nothing, RL, and evaluations, on the CPU, in minutes"
	@echo "make test       lint, type checks and tests, in parallel"
	@echo "make lint       only ruff; make types: only mypy; make pytest: only the tests"
	@echo "make test-full  also the long tests: every crash point, every task, fuzzing"
	@echo "make clients    tests of the gateway with the agents of other frameworks, in a folder of their own"
	@echo "make test-engines  tests against a real vLLM and a real SGLang on the CPU, in environments of their own (6 GB)"
	@echo "make fuzz       fuzz the HTTP API and the text formats, SECONDS=600 each"
	@echo "make viewer     build the page that shows runs, which needs Node.js 20"
	@echo "make docs       build the documentation as a site, in site/"
	@echo "make bench      all benchmarks, each with its baseline"
	@echo "make clean      remove what the other targets made"

# The names of the packages are shown as pip finds them; if pip fails, its whole output is shown. An environment
# without pip was not completed, and is made again. The pip of older Pythons takes seven times as long to find the
# versions that fit together, so a newer one is installed where it can be had.
define INSTALL
@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "Treadle needs Python 3.11 or newer; %s is %d.%d. Pass PYTHON=/path/to/python3.11" % (sys.executable, v[0], v[1]))'
@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	echo "making a virtual environment in $(VENV)"; $(PYTHON) -m venv --clear $(VENV); \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25" >/dev/null 2>&1 || true; }
@echo "installing treadle$(EXTRAS) into $(VENV):"
@{ $(BIN)/python -m pip install --disable-pip-version-check --editable ".$(EXTRAS)" 2>&1 || echo "pip failed"; } | \
	tee $(VENV)/install.log | awk ' \
	/^ *Collecting / { sub(/[^A-Za-z0-9_.-].*/, "", $$2); if (!seen[$$2]++) { printf " %s", $$2; fflush() } } \
	/^Installing collected packages/ { print "\nwriting the packages"; fflush() } \
	/^pip failed$$/ { failed = 1 } END { exit failed }' || { echo; cat $(VENV)/install.log; exit 1; }
endef

# TRL is installed without torch, which the tests do not need and which would take 750 MB.
$(STAMP): EXTRAS = [all,dev,train-tests]
$(STAMP): pyproject.toml
	$(INSTALL)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps "trl>=1.16,<2"
	@touch $@ $(DEMO_STAMP)

$(DEMO_STAMP): pyproject.toml
	$(INSTALL)
	@touch $@

# The page that shows runs, as one file. Without Node, everything else works, and says how to build it.
VIEWER := src/treadle/viewer/bundle.html
WEB := $(shell find web -name node_modules -prune -o -type f -print)

viewer: $(VIEWER)

$(VIEWER): $(WEB)
	@if ! command -v npm >/dev/null; then \
		echo "npm is missing, so the viewer is not built; install Node.js 20 or newer for it"; \
	elif ! (echo "building the viewer" && cd web && npm ci --no-audit --no-fund --loglevel=error --fetch-retries=1 >/dev/null); then \
		echo "the packages of the viewer could not be fetched, so it is not built"; \
	else cd web && npm run --silent build; fi

demo: $(DEMO_STAMP) $(VIEWER)
	@$(BIN)/treadle demo

prove: $(STAMP) $(VIEWER)
	@OMP_NUM_THREADS=1 $(BIN)/python examples/prove/prove.py $(PROVE_ARGS)

# The same under its earlier name.
train-demo: prove

LINT = $(BIN)/ruff check . && $(BIN)/ruff format --check .
TYPES = $(BIN)/mypy
PYTEST = $(BIN)/python -m pytest -n auto $(PYTEST_ARGS)

# All three run to the end, even if one fails. The output of ruff and mypy is printed after that of pytest.
test-full: engines sglang trainers
test test-full: bubblewrap $(VIEWER)
	@{ $(LINT); } >$(VENV)/lint.log 2>&1 & lint=$$!; \
	{ $(TYPES); } >$(VENV)/types.log 2>&1 & types=$$!; \
	echo "ruff, mypy and pytest run in parallel"; \
	$(if $(filter test-full,$@),TREADLE_FULL=1 TREADLE_ENGINES=$(ENGINES) TREADLE_SGLANG=$(SGLANG) TREADLE_TRAINERS=$(TRAINERS)) $(PYTEST) && tests=passed || tests=FAILED; \
	wait $$lint && lint=passed || lint=FAILED; cat $(VENV)/lint.log; \
	wait $$types && types=passed || types=FAILED; cat $(VENV)/types.log; \
	echo "ruff $$lint, mypy $$types, pytest $$tests"; \
	test "$$lint $$types $$tests" = "passed passed passed"

lint: $(STAMP)
	$(LINT)

types: $(STAMP)
	$(TYPES)

pytest: bubblewrap $(VIEWER)
	$(PYTEST)

engines: $(STAMP)
	@$(BIN)/python -m tests.environments engines $(ENGINES)

sglang: $(STAMP)
	@$(BIN)/python -m tests.environments sglang $(SGLANG)

trainers: $(STAMP)
	@$(BIN)/python -m tests.environments trainers $(TRAINERS)

test-engines: engines sglang
	TREADLE_ENGINES=$(ENGINES) TREADLE_SGLANG=$(SGLANG) $(BIN)/python -m pytest tests/engines $(PYTEST_ARGS)

clients: $(STAMP)
	@test -d $(CLIENTS) || $(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(CLIENTS) \
		smolagents openai-agents 'pydantic-ai-slim[openai,anthropic]' langchain langchain-openai ogx-client
	PYTHONPATH=src:.:$(CLIENTS) $(BIN)/python -m pytest tests/server/test_clients.py $(PYTEST_ARGS)

SECONDS ?= 600
fuzz-api: $(STAMP)
	@test -d $(API_FUZZER) || $(BIN)/python -m pip install --quiet --disable-pip-version-check --target $(API_FUZZER) \
		'schemathesis>=4.32,<5'
	PYTHONPATH=src:. $(BIN)/python -m tests.fuzz.api $(API_FUZZER) $(SECONDS)

# This needs the package atheris, which has wheels for Linux and macOS.
fuzz: fuzz-api
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[fuzz]"
	@mkdir -p .fuzz
	@for format in $$($(BIN)/python -c 'from treadle.formats import FORMATS; print(*FORMATS.names())'); do \
		echo "fuzzing $$format for $(SECONDS) s"; \
		$(BIN)/python -m tests.fuzz.formats $$format $(SECONDS) -artifact_prefix=.fuzz/ 2>.fuzz/$$format.log || \
		{ tail -40 .fuzz/$$format.log; exit 1; }; \
	done

# The tests run commands in bubblewrap. If it is not installed, it is put into the environment, with separate lists
# of packages, so that this needs no root and does not change the system.
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
	rm -rf web/node_modules $(VIEWER) $(VENV) $(ENGINES) $(SGLANG) $(TRAINERS) $(API_FUZZER) site .mypy_cache .ruff_cache .pytest_cache .hypothesis .fuzz demo
