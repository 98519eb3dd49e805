# Two commands do everything: `make demo` and `make test`. Both create .venv, install, and can be repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A stamp says which inputs the environment was built from; it is written only when every install step succeeded.
STAMP := $(VENV)/.installed
SOURCES := pyproject.toml constraints.txt $(wildcard cnf_cli/engine/cpp/* cnf_cli/search/cpp/*)

.PHONY: demo fmt check test test-slow sanitize fuzz chaos moments bench clean

demo: $(STAMP)
	$(BIN)/cnf demo --force

# Rewrites the sources as the formatter wants them, and mends what the linter can mend by itself.
fmt: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m ""

# The kernels under the address and undefined-behaviour sanitizers: the engine's own tests, then 12,000 calls with anything.
SANITIZED := build/sanitize
sanitize: $(STAMP)
	rm -rf $(SANITIZED)/wheel
	CNF_SANITIZE=1 $(BIN)/python -m pip wheel -q --no-deps -c constraints.txt -w $(SANITIZED)/wheel \
	  -C build-dir=$(SANITIZED)/objects -C install.strip=false .
	cd $(SANITIZED) && $(abspath $(BIN))/python -m zipfile -e wheel/cnf_cli-*.whl unpacked
	$(BIN)/python -m tests.reliability.sanitized $(SANITIZED)/unpacked

# Format, lint, types and import directions: seconds, before every commit.
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Many processes at random on one store, for ten minutes; then a comparison with a store in which each ran alone.
chaos: $(STAMP)
	OMP_NUM_THREADS=1 timeout 5400 $(BIN)/python -m tests.reliability.chaos --seconds 600

# 200 signals at random moments of six commands.
moments: $(STAMP)
	OMP_NUM_THREADS=1 timeout 10800 $(BIN)/python -m tests.reliability.moments --moments 200

bench: $(STAMP)
	$(BIN)/python -m benchmarks.engine

$(STAMP): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt --upgrade pip
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[test,solvers]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build
