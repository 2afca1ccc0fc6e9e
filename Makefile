# make run    fetch a small model, generate text with it, leave a report to open in a browser
# make test   everything that needs no GPU
# make test-gpu   the kernels on this machine's GPU, with a record under data/records/
# make lab    JupyterLab on notebooks/
# make notebooks  run every notebook and keep its outputs
# make pictures   README's pictures anew, from a notebook in a browser (chromium)
#
# Each target sets up what it needs in .venv by itself. PYTHON=... picks the interpreter, LAB_ARGS=... adds
# options to JupyterLab, PYTEST_ARGS=... to pytest; JOBS=... is how many tests run side by side.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test test-gpu lab notebooks pictures clean

PYTHON ?= python3
VENV ?= .venv
BIN ?= $(VENV)/bin
MODEL ?= smollm2-135m
PROMPT ?= The capital of France is
REPORT_DIR ?= build
LAB_ARGS ?=
PYTEST_ARGS ?=
JOBS ?= auto

# Stamps: newer than pyproject.toml means that its dependencies are installed.
RUN_SETUP ?= $(VENV)/.installed
TEST_SETUP ?= $(VENV)/.installed-test

# Python compiles what it imports by itself; pip would compile everything there is, for a minute.
PIP_ARGS := --quiet --disable-pip-version-check --no-compile

AS_ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

run: $(RUN_SETUP)
	$(BIN)/python -m minfer pull $(MODEL)
	$(BIN)/python -m minfer run -m $(MODEL) -p "$(PROMPT)" -n 64 --greedy --echo
	MINFER_MODEL=$(MODEL) $(BIN)/python -m jupyter nbconvert --log-level ERROR --to html --execute notebooks/00_start_here.ipynb \
		--ExecutePreprocessor.extra_arguments=--log-level=40 \
		--TagRemovePreprocessor.enabled=True --TagRemovePreprocessor.remove_cell_tags=interactive \
		--output-dir $(REPORT_DIR) --output 00_start_here.html
	@echo "Report: file://$(abspath $(REPORT_DIR))/00_start_here.html"

test: $(TEST_SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -p no:nbval -n $(JOBS) --dist worksteal $(PYTEST_ARGS)
	$(BIN)/python -m pytest -p tests.notebook_budget --nbval -n $(JOBS) --dist loadfile notebooks

test-gpu: $(TEST_SETUP)
	$(BIN)/python -m minfer.cuda.runtime
	$(BIN)/python -m pytest tests/gpu $(PYTEST_ARGS)

lab: $(RUN_SETUP)
	$(BIN)/python -m jupyter trust notebooks/*.ipynb  # so that they open with the widgets that they were saved with
	$(BIN)/python -m jupyter lab $(AS_ROOT) $(LAB_ARGS) notebooks

notebooks: $(RUN_SETUP)
	$(BIN)/python -m minfer.lab.notebooks execute notebooks/*.ipynb

pictures: $(TEST_SETUP)
	MINFER_SCREENSHOTS=build/screenshots $(BIN)/python -m pytest -p no:nbval tests/browser -k kernel_of_ones_own $(PYTEST_ARGS)
	cp build/screenshots/pictures/*.png data/pictures/

clean:
	rm -rf $(VENV) build dist

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "minfer needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
			"Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "Python cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
		exit 2; }

$(RUN_SETUP): pyproject.toml | $(VENV)/bin/python
	@echo "Installing into $(VENV) (1.4 GB; some minutes, once)"
	$(BIN)/python -m pip install $(PIP_ARGS) --editable .
	@touch $@

$(TEST_SETUP): pyproject.toml | $(VENV)/bin/python
	@echo "Installing into $(VENV) (some minutes, once)"
	$(BIN)/python -m pip install $(PIP_ARGS) --editable ".[test]"
	@touch $@ $(RUN_SETUP)
