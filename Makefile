# Everything runs in .venv; `make setup` needs only Python 3.11+ and network access to a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The version of PYTHON.
VERSION = $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
# Versions of Claude Code for the contract tests.
CLI_VERSIONS ?= 2.1.100,2.1.200,2.1.250,2.1.275,2.1.281,2.1.300,2.1.306,2.1.312
# Keep compiled tests: compiling takes each worker longer than collecting.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup help demo test compiled packages test-quick test-python test-newest flaky check format bench docs reference strings conformance soak parity pictures manifest web image bundle clean

setup: $(STAMP)  ## .venv with everything, including a Claude Code binary

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing everything for development into $(VENV): 800 MB on disk, 2 to 5 minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cli,dev]'
	touch $(STAMP)

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target about; do printf 'make %-12s %s\n' "$$target" "$$about"; done

# The demo needs neither the test tools nor the browser driver.
DEMO := $(if $(wildcard $(STAMP)),$(VENV),build/demo)

demo:  ## see it work on the scripted model; needs no account. Installs 450 MB into build/demo unless `make setup` was run
ifneq ($(DEMO),$(VENV))
	@test -x $(DEMO)/bin/claude-code-mcp || echo "Installing claude-code-mcp and Claude Code into build/demo: about 190 MB to download, 450 MB on disk, a minute or two. To remove it: rm -rf build/demo"
	@test -x $(DEMO)/bin/python || $(PYTHON) -m venv $(DEMO)
	@test -x $(DEMO)/bin/claude-code-mcp || $(DEMO)/bin/python -m pip install --disable-pip-version-check --progress-bar on -c constraints.txt -e '.[cli]'
endif
	@$(DEMO)/bin/claude-code-mcp demo

test: setup  ## format, lint, types and the tests; TEST_RUN_MINUTES=… limits the tests, else 70
	@$(MAKE) --no-print-directory -j 3 check packages compiled
	$(BIN)/python -m tests.support.run -n 4

# Otherwise each worker compiles all tests. An error is ignored here, because the tests report it.
compiled: setup  ## compile the tests
	-@$(BIN)/python -m tests.support.run --collect-only -q >/dev/null

# Runs before the tests, because a test would otherwise install packages while others run. If it fails, the tests that
# need the packages are skipped.
packages: setup  ## install what the tests need from the system and from npm, where that is possible
	$(BIN)/python -m tests.support.system_packages
	$(BIN)/python -m tests.support.npm

# Nearly all of these tests start programs. Collecting them takes as long as running a few hundred others.
BEYOND := scenarios deploy plugins/console/browser

# A change in any layer can change the first answers of the server, and then the manifest must be rebuilt.
MANIFEST := tests/startup/greeting/test_manifest.py::test_the_shipped_manifest_is_what_the_server_says

test-quick: setup  ## the tests that start no programs, in a few minutes; LAYER=hub: tests/hub, where tests that start programs run one case
	$(BIN)/python -m tests.support.run -q $(if $(LAYER),tests/$(LAYER) $(MANIFEST) --quick=layer -n 2,--quick=pure -n 4 $(addprefix --ignore=tests/,$(BEYOND)))

# The tests that do not depend on Node or a browser.
CORE := core hub server

test-python:  ## the core of the tests on another Python, in build/venv-VERSION: PYTHON=python3.13
	$(MAKE) --no-print-directory setup VENV=build/venv-$(VERSION)
	build/venv-$(VERSION)/bin/python -m tests.support.run -q -n 2 $(or $(TESTS),$(addprefix tests/,$(CORE)))

NEWEST := build/venv-newest

test-newest:  ## the core of the tests and the demo, with the newest versions that the ranges in pyproject.toml allow
	rm -rf $(NEWEST)
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[cli,dev]'
	-$(NEWEST)/bin/python -m pip freeze --exclude-editable | sort -f | diff constraints.txt -
	$(NEWEST)/bin/python -m tests.support.run -q -n 2 $(or $(TESTS),$(addprefix tests/,$(CORE)))
	$(NEWEST)/bin/claude-code-mcp demo

flaky: setup  ## run the last failures, or TESTS='…', 20 times on a busy machine; SEED=… repeats a run, ROUND=… one of its rounds
	$(BIN)/python -m tests.support.flaky

check: setup  ## format, lint and types only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: setup  ## apply the format and the safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup  ## measure against the raw protocol and the bare SDK; NAMES='fleet_up startup' for some of the rows
	$(BIN)/python -m benchmarks $(NAMES)

DOCS_STAMP := $(VENV)/.docs

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $(DOCS_STAMP)

docs: $(DOCS_STAMP)  ## build the documentation as a site into build/site; a broken link is an error
	$(BIN)/zensical build --clean --strict

reference: setup  ## renew the docs pages that are generated from code: tools, commands, settings, client entries
	$(BIN)/python -m tools.reference

strings: setup  ## print all user-facing texts with their places
	$(BIN)/python -m tools.strings

conformance: setup  ## the official MCP suite in both eras; needs Node
	$(BIN)/python -m conformance

soak: setup  ## checks that take too long for the tests, about two hours: all tests in another order, more cases, kills, crowds, a million shell commands; PARTS='rules kills' for some, SEED=… repeats an order
	$(BIN)/python -m benchmarks.soak --cli-versions $(CLI_VERSIONS) $(if $(SEED),--seed $(SEED)) $(PARTS)

parity: setup  ## the hub against Claude Code's own client, with servers from npm and PyPI; PARITY=write renews the table
	PARITY=$(or $(PARITY),full) $(BIN)/python -m tests.support.run tests/scenarios/hub_parity -m '' -q

pictures: setup  ## renew the pictures of the documentation; needs Node and tmux
	$(BIN)/python -m tests.plugins.tui.pictures docs/pictures
	$(BIN)/python -m tests.plugins.console.browser.pictures
	$(BIN)/python -m tests.plugins.terminal.pictures

manifest: setup  ## renew the first answers on stdio, after a change to a tool, the instructions or the SDK
	$(BIN)/python -m claude_code_mcp.server.manifest

web: setup  ## build the web console and the MCP App into the package; needs Node
	$(BIN)/python web/build_types.py
	mkdir -p build/web && cp web/package.json build/web/package.json
	npm install --prefix build/web --ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error
	build/web/node_modules/.bin/tsc -p web
	node web/build.mjs src/claude_code_mcp build/web

# Podman or Docker, whichever is installed. Podman's own image format has no health check.
ENGINE ?= $(shell command -v podman || echo docker)

image:  ## a container image of this checkout, claude-code-mcp; needs Podman or Docker
	$(ENGINE) build $(if $(findstring podman,$(ENGINE)),--format docker) -f deploy/container/Containerfile -t claude-code-mcp .

bundle:  ## dist/claude-code-mcp.mcpb, which desktop clients install with a click, and dist/server.json with its hash; needs Node
	rm -rf build/bundle dist/claude-code-mcp.mcpb && mkdir -p build/bundle dist
	cp -R deploy/bundle/manifest.json pyproject.toml README.md LICENSE src build/bundle
	find build/bundle -name __pycache__ -prune -exec rm -rf {} +
	npm install --prefix build/mcpb --ignore-scripts --no-package-lock --no-audit --no-fund --loglevel=error @anthropic-ai/mcpb@2.1.2
	build/mcpb/node_modules/.bin/mcpb validate build/bundle/manifest.json
	build/mcpb/node_modules/.bin/mcpb pack build/bundle dist/claude-code-mcp.mcpb
	$(PYTHON) deploy/registry/add_hash.py deploy/registry/server.json dist/claude-code-mcp.mcpb > dist/server.json

clean:  ## remove .venv and all caches
	rm -rf $(VENV) build .mypy_cache .ruff_cache .hypothesis
