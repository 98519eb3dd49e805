# Two commands do everything: `make demo` and `make test`. Both create .venv, install, and can be repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A stamp says which inputs the environment was built from; it is written only when every install step succeeded.
STAMP := $(VENV)/.installed
SOURCES := pyproject.toml constraints.txt $(wildcard cnf_cli/engine/cpp/*)

.PHONY: demo test test-slow lint bench clean

demo: $(STAMP)
	$(BIN)/cnf demo

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m ""

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks.engine

$(STAMP): $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt --upgrade pip
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[test,solvers]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build
