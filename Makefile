# tailgate: every target works on a fresh clone with nothing but python3 (>= 3.11, with venv) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
CLIENTS := .venv-clients
CLIENTS_STAMP := $(CLIENTS)/.installed
NODE := tests/clients/node
NODE_STAMP := $(NODE)/node_modules/.installed
LIGHT_STAMP := $(NODE)/node_modules/.light
# For two cores: tests of processes wait for each other.
WORKERS := 3

.PHONY: help setup dev run free-ports scenario headline test test-long lint bench soak wheel release site test-interpreted compiled experiments test-vllm test-clients node-clients lock schema clean

help:  ## What there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: compiled  ## Just .venv, with .venv/bin/tailgate

# Nothing is compiled to bytecode at once: Python does that for what is used. What compiles tailgate comes first,
# so that one core compiles while the other installs the rest.
PIP := $(BIN)/pip install --quiet --progress-bar off --disable-pip-version-check --no-compile --no-deps

$(STAMP): requirements-build.lock requirements-sim.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tailgate needs Python >= 3.11; say which: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "1. $(VENV), and what compiles tailgate"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --require-hashes -r requirements-build.lock
	@echo "2. the other packages, while tailgate is compiled"
	@$(BIN)/python -m deploy.compiling & compiling=$$!; \
	$(PIP) --require-hashes -r requirements-sim.lock && $(PIP) --no-build-isolation --editable . && \
	echo "3. packages are installed; waiting for the compiler" && { wait $$compiling || true; }
	@touch $(STAMP)

dev: compiled $(DEV_STAMP)  ## What tests and lint need, too

$(DEV_STAMP): $(STAMP) requirements-dev.lock
	@echo "what tests and lint need"
	@$(PIP) --require-hashes -r requirements-dev.lock
	@touch $(DEV_STAMP)

compiled: $(STAMP)  # A fifth of a second where nothing changed. Without a C compiler: a message, and interpreted code.
	@$(BIN)/python -m deploy.compiling

run: free-ports compiled  ## Four emulated replicas and the gateway in front of them, until Ctrl-C; ARGS=--free-ports
	@$(BIN)/tailgate demo $(ARGS)

free-ports:  # First, because a taken port is no news that one should wait for until everything is installed.
	@$(PYTHON) -m loadtests.ports $(ARGS)

scenario: compiled  ## Something goes wrong in front of a fleet: make scenario NAME=overload; without a name, all are listed
	@$(BIN)/tailgate load scenario $(NAME) $(ARGS)

headline: compiled  ## The picture of README.md, played live: an overload behind nginx and behind tailgate; six minutes
	@$(BIN)/python -m loadtests.scenarios.headline docs/results

test: compiled $(DEV_STAMP)  ## The tests but for the long ones, over what everyone runs: compiled if possible; PYTEST_ARGS="-k name"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)

test-long: compiled $(DEV_STAMP)  ## Every test, with all random examples; some ten minutes
	@TAILGATE_TEST_LONG=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(DEV_STAMP)  ## Style, types, and who may import whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: compiled  ## CPU per request and per chunk against other proxies, as ratios in one run
	@$(BIN)/python -m loadtests.bench --json bench.json

soak: compiled  ## Ten minutes of mixed clients and every fault: nothing may grow or be left over; HOURS=8 for a night
	@$(BIN)/python -m loadtests.bench.soak $(if $(HOURS),--hours $(HOURS))

wheel: $(STAMP)  ## A wheel in dist/, compiled (needs a C compiler)
	@TAILGATE_PURE=0 $(BIN)/python -m hatchling build --target wheel

release: $(DEV_STAMP)  ## Changelog, sdist, wheels, image, chart and SBOM in dist/, tried in an empty environment: make release VERSION=1.2.3
	@$(BIN)/python -m deploy.release $(VERSION)

site: $(DEV_STAMP)  ## The documents as a site in build/site, with llms.txt
	@$(BIN)/mkdocs build --strict --quiet

test-interpreted: $(DEV_STAMP)  ## The tests that only the code as it is written can pass
	@TAILGATE_PURE=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m interpreted

experiments: compiled  ## Every figure of docs/results/experiments again, with its tables and pictures
	@$(BIN)/python -m loadtests.experiments run all --docs docs/results/experiments

test-vllm: compiled $(DEV_STAMP)  ## The same requests against a real engine: make test-vllm URL=http://127.0.0.1:8000
	@test -n "$(URL)" || { echo "say where the engine is: make test-vllm URL=http://127.0.0.1:8000"; exit 2; }
	@TAILGATE_TEST_ENGINE=$(URL) $(BIN)/python -m pytest tests/engine -v

test-clients: compiled $(DEV_STAMP) $(CLIENTS_STAMP) $(NODE_STAMP)  ## Real clients against the gateway; minutes, and 1.4 GB of packages
	@TAILGATE_TEST_CLIENTS=1 $(BIN)/python -m pytest tests/clients -vv -rs -n 2 --dist worksteal

$(CLIENTS_STAMP): tests/clients/python/requirements.txt
	@$(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/pip install --quiet --disable-pip-version-check -r tests/clients/python/requirements.txt
	@touch $(CLIENTS_STAMP)

NPM_CI := cd $(NODE) && npm ci --ignore-scripts --no-audit --no-fund --loglevel error
HAS_NPM := command -v npm > /dev/null || { echo "there is no npm: the clients that need node are skipped"; exit 0; }

$(NODE_STAMP): $(NODE)/package-lock.json
	@$(HAS_NPM); ($(NPM_CI) && node node_modules/@anthropic-ai/claude-code/install.cjs) && touch $@

node-clients: $(LIGHT_STAMP)  ## The SDKs of OpenAI and Anthropic for node, for their tests in make test
$(LIGHT_STAMP): $(NODE)/package-lock.json
	@$(HAS_NPM); [ -e $(NODE_STAMP) ] || ($(NPM_CI) --omit=optional) && touch $@

LOCK := uv pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url --python-version 3.11 --quiet --custom-compile-command "make lock"

lock:  ## Pin every dependency again, with hashes
	$(LOCK) --extra dev --upgrade -o requirements-dev.lock
	$(LOCK) --extra build --extra fleet --constraint requirements-dev.lock --upgrade -o requirements-build.lock
	$(LOCK) --extra sim --constraint requirements-dev.lock --upgrade -o requirements-sim.lock
	$(LOCK) --extra fleet --constraint requirements-dev.lock --upgrade -o requirements.lock

schema: $(STAMP)  ## Write the JSON Schema of policy files again
	@$(BIN)/python -m gateway.policy.json_schema > policies/tailgate.schema.json
	@$(BIN)/python -m deploy.release.chart_schema > deploy/helm/tailgate/values.schema.json

clean:  ## Remove what was installed and built
	rm -rf $(VENV) $(CLIENTS) tests/clients/node/node_modules build dist .bench bench.json loadtest-results
