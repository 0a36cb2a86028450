# Everything that a person does with Aerie. `make` alone explains it.
#
# Variables, given as `make TARGET NAME=value`:
#   PYTHON   the Python that the environment is made with             (python3)
#   CONFIG   what `all` and others work on                             (config.yaml)
#   WORK     the results that `verify` reads                          (results/demo)
#   CORES    cores that local jobs share                              (all)
#   GPUS     GPUs that local jobs share                               (1)
#   MEM_MB   memory that local jobs share, in MB                      (what is free, 4000 at least)
#   PROFILE  how jobs run: a folder or file under profiles/           (profiles/default)
#   ARGS     anything else that Snakemake or pytest shall be told
#
# torch: the package index serves a CUDA build of several GB. Where a CPU will do, let pip know of
# CPU wheels before `make setup`, by PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS: requirements/run.txt.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
CONFIG ?= config.yaml
WORK ?= results/demo
CORES ?= all
GPUS ?= 1
MEM_MB ?= $(shell awk '/MemAvailable/ {mb = int($$2 / 1024); print (mb > 4000 ? mb : 4000)}' /proc/meminfo)
PROFILE ?= profiles/default
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RULES := Snakefile rules

# aerie/ runs from the checkout, so that an installed copy can never drift; rules/ holds the logger.
export PYTHONPATH := $(CURDIR):$(CURDIR)/rules
export TOKENIZERS_PARALLELISM := false

# Commands that other commands start (python, shfmt, snakemake) are found in the environment too.
RUN = PATH="$(CURDIR)/$(BIN):$$PATH"
SNAKEMAKE = $(BIN)/snakemake --workflow-profile $(PROFILE) --logger aerie --cores $(CORES) \
  --resources gpu=$(GPUS) mem_mb=$(MEM_MB) --configfile

# One build at a time in a folder. Snakemake's own lock outlives a kill; this one ends with the last
# process of the build, jobs included, so that a second run neither fails nor meets the first one's.
LOCK := .snakemake/build.lock
LOCKED = mkdir -p .snakemake; \
  flock --nonblock $(LOCK) true || echo 'waiting for an earlier build in this folder to end' >&2; \
  $(RUN) flock $(LOCK)

##@ Build
help: ## explain the targets
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n\033[1m%s\033[0m\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  \033[36mmake %-14s\033[0m %s\n", $$1, $$2}' Makefile
	@printf '\nVariables (PYTHON, CONFIG, CORES, GPUS, ...) are explained at the top of the Makefile.\n'

demo: $(VENV)/run.done ## the whole workflow on a small real model: minutes on a laptop
	@export HF_HUB_OFFLINE=1; $(LOCKED) $(SNAKEMAKE) demo/config.yaml --nolock $(ARGS)
	@$(BIN)/python scripts/summary.py --bench results/demo/bench/*/*.json \
	  --report results/demo/report/index.html

all: $(VENV)/run.done config-exists ## build the draft that CONFIG describes
	@$(LOCKED) $(SNAKEMAKE) $(CONFIG) --nolock $(ARGS)

# Reads what is there and changes no artifact, so it may look in while a build runs.
plan: $(VENV)/run.done config-exists ## what CONFIG needs and whether it fits: tokens, TB, GPU-hours
	@$(RUN) $(SNAKEMAKE) $(CONFIG) --nolock --force $(ARGS) -- plan

dry-run: $(VENV)/run.done config-exists ## what `make all` would run, and why (CONFIG=demo/config.yaml)
	@$(RUN) $(SNAKEMAKE) $(CONFIG) --dry-run $(ARGS)
	@printf 'What follows a selection is listed when the selection has been made.\n'

# A lock of its own: a build of days must not hold up a look at the Hub. The searches wait for the
# network, so all ten run at once whatever the cores; no file says what the Hub holds, so they are
# forced.
scout: $(VENV)/run.done config-exists ## what the Hub holds for each category of prompts, ranked
	@mkdir -p .snakemake
	@$(RUN) flock .snakemake/scout.lock $(SNAKEMAKE) $(CONFIG) --nolock --cores 10 $(ARGS) \
	  --forcerun scout_category -- scout

verify: $(VENV)/run.done ## read every artifact under WORK again and name what is damaged
	@$(BIN)/python -m aerie verify $(WORK) $(ARGS)

clean: ## remove the demo's results, after asking (YES=1: without)
	@[ -d results/demo ] || { echo 'results/demo does not exist: nothing to remove'; exit 0; }; \
	if [ -z "$(YES)" ]; then \
	  printf 'Remove results/demo (%s)? [y/N] ' "$$(du -sh results/demo | cut -f1)"; \
	  read -r answer || answer=; \
	  case "$$answer" in [yY]*) ;; *) echo 'kept'; exit 0 ;; esac; \
	fi; \
	rm -rf results/demo; echo 'removed results/demo'

##@ Develop
test: $(VENV)/dev.done ## all tests
	@$(PYTEST) $(ARGS)

test-unit: $(VENV)/dev.done ## tests of the library
	@$(PYTEST) tests/unit $(ARGS)

test-workflow: $(VENV)/dev.done ## tests of the rules: which jobs run, and when none does
	@$(PYTEST) tests/workflow $(ARGS)

test-engine: $(VENV)/dev.done ## tests with the demo's real model, and of the report in a browser
	@$(PYTEST) tests/engine $(ARGS)

PYTEST = HF_HUB_OFFLINE=1 $(RUN) $(BIN)/python -m pytest

lint: $(VENV)/dev.done ## everything that a reviewer should not have to say
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(RUN) $(BIN)/snakefmt --check $(RULES)
	$(BIN)/snakemake --lint --configfile demo/config.yaml

format: $(VENV)/dev.done ## rewrite Python and rules in the one style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(RUN) $(BIN)/snakefmt $(RULES)

##@ Environment
setup: $(VENV)/run.done $(BIN)/aerie ## the Python environment in .venv (the targets above call it)
	@echo '$(VENV) is ready'

setup-dev: $(VENV)/dev.done $(BIN)/aerie ## the same with what tests and lint need
	@echo '$(VENV) is ready'

# A stamp is younger than the files it was made from, so pip runs only when one of them changed.
$(VENV)/run.done: requirements/run.txt requirements/demo.txt
	@$(CHECK_PYTHON)
	@echo 'setup: $(VENV) with '"$$($(PYTHON) --version)"', then the packages: minutes the first time'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -qq -r requirements/run.txt
	@$(PIP) install -qq --no-deps -r requirements/demo.txt
	@touch $@
	@echo 'setup: done'

$(VENV)/dev.done: $(VENV)/run.done requirements/dev.txt
	@echo 'setup: packages for tests and lint'
	@$(PIP) install -qq -r requirements/dev.txt
	@touch $@

# `aerie COMMAND` beside python: a link into this checkout, since nothing is installed.
$(BIN)/aerie: scripts/aerie | $(VENV)/run.done
	@ln -sfn ../../$< $@

define CHECK_PYTHON
command -v $(PYTHON) > /dev/null || { \
  echo 'setup: there is no $(PYTHON); install Python 3.11 to 3.13, or name one: make setup PYTHON=python3.12' >&2; \
  exit 1; }; \
$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
  echo "setup: Aerie needs Python 3.11 to 3.13; $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; \
  echo '       name another one: make setup PYTHON=python3.12' >&2; \
  exit 1; }; \
$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
  echo 'setup: $(PYTHON) cannot make virtual environments, since a part of it is packaged apart' >&2; \
  echo '       on Debian and Ubuntu: sudo apt-get install python3-venv' >&2; \
  exit 1; }
endef

config-exists:
	@[ -f "$(CONFIG)" ] || { \
	  echo '$(CONFIG) does not exist; name a configuration: make all CONFIG=demo/config.yaml' >&2; \
	  exit 1; }

.PHONY: help demo all plan dry-run scout verify clean test test-unit test-workflow test-engine lint format setup \
  setup-dev config-exists
