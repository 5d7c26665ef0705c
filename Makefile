# `make` alone lists the targets; README.md has the tour.

VENV := .venv
BIN := $(VENV)/bin
ASTRAI := $(BIN)/astrai
MODEL := smollm2-135m
TORCH := torch==2.13.0
# On Linux the usual index gives PyTorch with CUDA, gigabytes that the cpu backend never loads.
# The build for CPUs is tried first, where pip looks anyway or in TORCH_INDEX where that is set.
TORCH_INDEX :=
JS := tests/javascript

.DEFAULT_GOAL := help
.PHONY: help setup build-cpu javascript-clients demo test lint bench clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## make .venv with astrai, the cpu backend and the development tools

$(VENV)/.ready: pyproject.toml
	@python=$$(for each in $(PYTHON) python3.11 python3 python3.12 python3.13; do \
		"$$each" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
			&& { echo "$$each"; break; }; done); \
	test -n "$$python" || { echo "make: no Python >= 3.11 with venv found: install one" \
		"(Debian: apt-get install python3-venv), or set PYTHON" >&2; exit 1; }; \
	test -x $(BIN)/python || "$$python" -m venv $(VENV)
	@echo "Installing PyTorch into $(VENV) (minutes, once)"
	@$(BIN)/pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) \
		$(TORCH)+cpu 2>/dev/null || $(BIN)/pip install --quiet $(TORCH)
	@echo "Installing astrai and the packages it needs"
	@$(BIN)/pip install --quiet -e '.[cpu,mlx,dev]'
	@touch $@

build-cpu: setup ## compile the native library of the cpu backend
	$(ASTRAI) build --backend cpu

demo: build-cpu ## from nothing to an answer: pull a model, export it, ask it something
	$(ASTRAI) pull $(MODEL)
	$(ASTRAI) chat $(MODEL) "What is the capital of France?" --temperature 0
	@echo
	@echo "That was $(MODEL) on this machine's processor. Now try:"
	@echo "  $(ASTRAI) chat $(MODEL)     to talk to it"
	@echo "  $(ASTRAI) serve $(MODEL)    to serve it at http://127.0.0.1:8000/v1"

javascript-clients: $(JS)/node_modules/.ready ## install the JavaScript clients that the tests run

$(JS)/node_modules/.ready: $(JS)/package-lock.json | setup
	@echo "Installing the official JavaScript clients into $(JS)"
	@PATH="$(CURDIR)/$(BIN):$$PATH" npm ci --silent --prefix $(JS) && touch $@ \
		|| echo "make: npm found no packages; the tests of JavaScript clients will be skipped" >&2

test: build-cpu javascript-clients ## run the test suite; PYTEST_ARGS='-k scheduler' narrows it
	$(BIN)/pytest -n 2 --dist loadfile $(PYTEST_ARGS)

lint: setup ## check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: build-cpu ## measure prefill and decode speed
	$(ASTRAI) bench $(MODEL)

clean: ## remove what tools leave behind
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## the same, and .venv; models and artifacts stay in the cache folder
	rm -rf $(VENV) $(JS)/node_modules
