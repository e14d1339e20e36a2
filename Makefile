# tailgate: every target works on a fresh clone with nothing but python3 (>= 3.11, with venv) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CLIENTS := .venv-clients
CLIENTS_STAMP := $(CLIENTS)/.installed
NODE_STAMP := tests/clients/node/node_modules/.installed

.PHONY: help setup run scenario test lint bench wheel test-compiled experiments test-vllm test-clients lock schema clean

help:  ## What there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: $(STAMP)  ## Just .venv, with .venv/bin/tailgate

$(STAMP): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tailgate needs Python >= 3.11; say which: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo "installing into $(VENV) (hash-locked; about a minute the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

run: $(STAMP)  ## Four emulated replicas and the gateway in front of them, until Ctrl-C
	@$(BIN)/python -m loadtests.demo

scenario: $(STAMP)  ## Something goes wrong in front of a fleet: make scenario NAME=overload; without a name, all are listed
	@$(BIN)/python -m loadtests scenario $(NAME) $(ARGS)

test: $(STAMP)  ## Every test
	@$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(STAMP)  ## Style, types, and who may import whom
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(STAMP)  ## CPU per request and per chunk against other proxies, as ratios in one run
	@$(BIN)/python -m loadtests.bench --json bench.json

wheel: $(STAMP)  ## A wheel in dist/ with the request path compiled (needs a C compiler)
	@folder=$$($(BIN)/python -m loadtests.compiled) && mkdir -p dist && cp $$folder/*.whl dist/ && ls dist/*.whl

test-compiled: $(STAMP)  ## Every test, over the compiled request path (needs a C compiler)
	@folder=$$($(BIN)/python -m loadtests.compiled) && PYTHONSAFEPATH=1 PYTHONPATH=$$folder:. $(BIN)/python -m pytest -n 2 --dist worksteal --import-mode append

experiments: $(STAMP)  ## Every figure of docs/experiments again, with its tables and pictures; takes hours
	@$(BIN)/python -m loadtests.experiments run all --docs docs/experiments

test-vllm: $(STAMP)  ## The same requests against a real engine: make test-vllm URL=http://127.0.0.1:8000
	@test -n "$(URL)" || { echo "say where the engine is: make test-vllm URL=http://127.0.0.1:8000"; exit 2; }
	@TAILGATE_TEST_ENGINE=$(URL) $(BIN)/python -m pytest tests/engine -v

test-clients: $(STAMP) $(CLIENTS_STAMP) $(NODE_STAMP)  ## Real clients against the gateway; minutes, and 1.4 GB of packages
	@TAILGATE_TEST_CLIENTS=1 $(BIN)/python -m pytest tests/clients -vv -rs -n 2 --dist worksteal

$(CLIENTS_STAMP): tests/clients/python/requirements.txt
	@$(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/pip install --quiet --disable-pip-version-check -r tests/clients/python/requirements.txt
	@touch $(CLIENTS_STAMP)

$(NODE_STAMP): tests/clients/node/package-lock.json
	@command -v npm > /dev/null || { echo "there is no npm: the clients that need node are skipped"; exit 0; }; \
	cd tests/clients/node && npm ci --ignore-scripts --no-audit --no-fund --loglevel error && \
	node node_modules/@anthropic-ai/claude-code/install.cjs && touch ../../../$(NODE_STAMP)

lock:  ## Pin every dependency again, with hashes
	uv pip compile pyproject.toml --universal --generate-hashes --no-emit-index-url --python-version 3.11 --upgrade --quiet --custom-compile-command "make lock" -o requirements.lock
	uv pip compile pyproject.toml --extra dev --universal --generate-hashes --no-emit-index-url --python-version 3.11 --upgrade --quiet --custom-compile-command "make lock" -o requirements-dev.lock

schema: $(STAMP)  ## Write the JSON Schema of policy files again
	@$(BIN)/python -m gateway.policy.json_schema > policies/tailgate.schema.json

clean:  ## Remove what was installed and built
	rm -rf $(VENV) $(CLIENTS) tests/clients/node/node_modules .venv-serve build dist .bench bench.json loadtest-results
