# Everything runs in .venv; `make setup` needs only Python 3.11+ and network access to a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# More versions of Claude Code for the contract that the tests keep with it.
CLI_VERSIONS ?= 2.1.100,2.1.200,2.1.250,2.1.275,2.1.281,2.1.300,2.1.306,2.1.312

.PHONY: setup demo test check format bench conformance soak manifest clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cli,dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/claude-code-mcp demo

test: setup check
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m benchmarks

conformance: setup
	$(BIN)/python -m conformance

soak: setup
	$(BIN)/python -m benchmarks.soak
	$(BIN)/python -m benchmarks.containment
	TEST_CLI_VERSIONS=$(CLI_VERSIONS) $(BIN)/python -m pytest tests/versions -q

# What the server says first, renewed after a change to a tool, the instructions or the SDK.
manifest: setup
	$(BIN)/python -m claude_code_mcp.greeting.build

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .hypothesis
