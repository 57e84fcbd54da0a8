# Two commands start everything: `make demo` and `make test`. Both set up .venv when it is missing or out of date.
#
#   PYTHON     the Python to make .venv with: 3.11 to 3.13, by default the first of these that is found
#   PIP_FLAGS  passed to `pip install`, as in PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu"
#   WORKERS    processes that pytest runs in
#   MODEL      what `make demo` optimizes

VENV := .venv
BIN := $(VENV)/bin
MIN := .venv-min
STAMP := $(VENV)/.prism-dev
DOCS_STAMP := $(VENV)/.prism-docs
# The oldest Triton that is supported, for tests of what is emitted: beside the environment's own packages, and gone
# with it. There is none but for Linux.
OLDEST_TRITON := $(if $(filter Linux,$(shell uname -s)),$(VENV)/oldest-triton)
OLDEST_STAMP := $(if $(OLDEST_TRITON),$(OLDEST_TRITON)/.prism)
WORKERS ?= 2
MODEL ?= examples/models/gated_mlp.onnx
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	"$$p" -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo "$$p"; break; }; done)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test unit test-min lint format docs bench clean setup

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1	/'

demo: $(STAMP) ## optimize a shipped ONNX model into out/demo
	@mkdir -p out
	$(BIN)/prism optimize $(MODEL) --out out/demo

test: $(STAMP) ## lint, check types and imports, run the tests
	@$(MAKE) --no-print-directory --jobs 2 lint unit

unit: $(STAMP) $(OLDEST_STAMP)
	PRISM_OLDEST_TRITON="$(OLDEST_TRITON)" $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-min: ## run the tests with the oldest versions that are supported, in a .venv-min of their own
	@"$(MIN)/bin/python" -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(MIN)
	$(MIN)/bin/python -m pip install --disable-pip-version-check --quiet $(PIP_FLAGS) -c constraints-min.txt -e '.[dev]'
	$(MIN)/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(STAMP) ## ruff, mypy and the import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## let ruff fix and lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DOCS_STAMP) ## build the documentation into out/docs
	$(BIN)/sphinx-build -W --keep-going -b html docs out/docs

bench: $(STAMP) ## time the search on every example
	$(BIN)/python benchmarks/search.py

clean: ## remove what the commands above made, .venv included
	rm -rf $(VENV) $(MIN) out dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

setup: $(STAMP) ## make .venv and install into it

$(STAMP): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "prism needs Python 3.11, 3.12 or 3.13, and none was found on PATH; install one, or say where: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; fi
	@"$(PYTHON)" -c '$(SUPPORTED)' || { echo "prism needs Python 3.11, 3.12 or 3.13, which $(PYTHON) is not" >&2; exit 1; }
	@"$(BIN)/python" -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv --clear $(VENV) || { \
		echo "$(PYTHON) could not make $(VENV); on Debian and Ubuntu install its python3-venv package" >&2; exit 1; }
	$(BIN)/python -m pip install --disable-pip-version-check --quiet $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	@touch $@

$(VENV)/oldest-triton/.prism: constraints-min.txt | $(STAMP)
	@rm -rf $(@D)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-compile $(PIP_FLAGS) --target $(@D) \
		--no-deps -c constraints-min.txt triton
	@touch $@

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet $(PIP_FLAGS) -c constraints.txt -e '.[docs]'
	@touch $@
