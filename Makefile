# Everything that a person does with Aerie. `make` alone explains it.
#
# Variables, given as `make TARGET NAME=value`:
#   PYTHON   the Python that the environment is made with             (python3)
#   CONFIG   what `all` and others work on                             (config.yaml)
#   WORK     the results that `verify` reads                          (results/demo)
#   CORES    cores that local jobs share                              (all)
#   GPUS     GPUs that local jobs share                               (1)
#   MEM_MB   memory that local jobs share, in MB                      (what is free, 4000 at least)
#   IMAGES   which images `images` builds                             (all)
#   RUNTIME  what it builds them for: apptainer or docker             (apptainer, where there is one)
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
SGLANG_VENV := .venv-sglang
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RULES := Snakefile rules

# aerie/ runs from the checkout, so that an installed copy can never drift; rules/ holds the logger.
export PYTHONPATH := $(CURDIR):$(CURDIR)/rules
export TOKENIZERS_PARALLELISM := false

# Commands that other commands start (python, shfmt, snakemake) are found in the environment too.
RUN = PATH="$(CURDIR)/$(BIN):$$PATH"
SNAKEMAKE = $(BIN)/snakemake --workflow-profile $(PROFILE) --logger aerie $(LIMITS) --configfile

# A profile with a program `launch` runs jobs elsewhere: what this machine has must not bound them.
LAUNCH := $(wildcard $(PROFILE)/launch)
LIMITS = $(if $(LAUNCH),,--cores $(CORES) --resources gpu=$(GPUS) mem_mb=$(MEM_MB))
READY := $(VENV)/run.done $(if $(LAUNCH),$(VENV)/slurm.done)

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
	  /^[a-z-]+:.*## / {printf "  \033[36mmake %-16s\033[0m %s\n", $$1, $$2}' Makefile
	@printf '\nVariables (PYTHON, CONFIG, CORES, GPUS, ...) are explained at the top of the Makefile.\n'

demo: $(READY) ## the whole workflow on a small real model: minutes on a laptop
	@export HF_HUB_OFFLINE=1; $(LOCKED) $(LAUNCH) $(SNAKEMAKE) demo/config.yaml --nolock $(ARGS)
	@$(BIN)/python scripts/summary.py --bench results/demo/bench/*/*.json \
	  --report results/demo/report/index.html

# A server, where the engine is one, loads the target once a phase: scripts/phases.
PHASES = $(LOCKED) scripts/phases $(CONFIG) $(patsubst $(BIN)/%,%,$(SNAKEMAKE)) $(CONFIG) --nolock $(ARGS)

all: $(READY) config-exists ## build the draft that CONFIG describes
	@$(if $(LAUNCH),$(LOCKED) $(LAUNCH) $(SNAKEMAKE) $(CONFIG) --nolock $(ARGS),$(PHASES))

docker-all: $(VENV)/run.done config-exists ## the same inside Docker images (make images RUNTIME=docker)
	@export RUNTIME=docker; $(PHASES)

doctor: $(VENV)/run.done config-exists ## whether this machine can do it: GPUs, disk, Hub, limits
	@$(BIN)/python -m aerie doctor --config $(CONFIG)

lock-check: $(VENV)/run.done config-exists ## whether every input is still what the build's lock says
	@$(BIN)/python -m aerie lock --check --config $(CONFIG)

# Reads what is there and changes no artifact, so it may look in while a build runs.
plan: $(READY) config-exists ## what CONFIG needs and whether it fits: tokens, TB, GPU-hours
	@$(RUN) $(SNAKEMAKE) $(CONFIG) --nolock --force $(ARGS) -- plan

dry-run: $(READY) config-exists ## what `make all` would run, and why (CONFIG=demo/config.yaml)
	@$(RUN) $(SNAKEMAKE) $(CONFIG) --dry-run $(ARGS)
	@printf 'What follows a selection is listed when the selection has been made.\n'

# A lock of its own: a build of days must not hold up a look at the Hub. The searches wait for the
# network, so all ten run at once whatever the cores; no file says what the Hub holds, so they are
# forced.
scout: $(VENV)/run.done config-exists ## what the Hub holds for each category of prompts, ranked
	@mkdir -p .snakemake
	@$(RUN) flock .snakemake/scout.lock $(SNAKEMAKE) $(CONFIG) --nolock --cores 10 $(ARGS) \
	  --forcerun scout_category -- scout

STUDY = @$(LOCKED) $(LAUNCH) $(SNAKEMAKE) $(CONFIG) --nolock $(ARGS) --

scaling: $(READY) config-exists ## after a build: whether more data would help
	$(STUDY) scaling

map-study: $(READY) config-exists ## after a build: whether another size of the map would
	$(STUDY) map_study

mix-study: $(READY) config-exists ## after a build: which dataset helps which domain
	$(STUDY) mix_study

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

test-sglang: $(VENV)/dev.done $(SGLANG_VENV)/done ## tests against real SGLang servers on the CPU
	@$(PYTEST) tests/sglang $(ARGS)

test-cluster: $(VENV)/dev.done $(VENV)/slurm.done ## starts a SLURM of one node and builds through the profile
	@tests/cluster/install
	@$(PYTEST) tests/cluster $(ARGS)

test-faults: $(VENV)/dev.done ## kills, full disks, damage and hostile servers, counted: ten minutes
	@$(PYTEST) tests/faults $(ARGS)

test-containers: $(VENV)/dev.done ## builds an image without a registry and runs the demo's phases in it
	@tests/containers/install
	@$(PYTEST) tests/containers $(ARGS)

PYTEST = HF_HUB_OFFLINE=1 $(RUN) $(BIN)/python -m pytest

lint: $(VENV)/dev.done ## everything that a reviewer should not have to say
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(RUN) $(BIN)/snakefmt --check $(RULES)
	$(BIN)/snakemake --lint --configfile demo/config.yaml
	$(BIN)/python -m aerie images lock --check

format: $(VENV)/dev.done ## rewrite Python and rules in the one style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(RUN) $(BIN)/snakefmt $(RULES)

##@ Containers
images: $(VENV)/run.done ## build the images for containers (IMAGES="cpu train serve", RUNTIME=docker)
	@$(BIN)/python -m aerie images build $(IMAGES) $(if $(RUNTIME),--runtime $(RUNTIME)) $(ARGS)

images-lock: $(VENV)/run.done ## write containers/images.lock.yaml: recipes, and what registries say
	@$(BIN)/python -m aerie images lock $(ARGS)

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

$(VENV)/slurm.done: $(VENV)/run.done requirements/slurm.txt
	@echo 'setup: packages for SLURM'
	@$(PIP) install -qq -r requirements/slurm.txt
	@touch $@

$(VENV)/dev.done: $(VENV)/run.done requirements/dev.txt requirements/tracking.txt
	@echo 'setup: packages for tests and lint'
	@$(PIP) install -qq -r requirements/dev.txt -r requirements/tracking.txt
	@touch $@

# Python 3.11 to 3.13 again; what SGLang asks for and its code for the CPU never calls is left out.
$(SGLANG_VENV)/done: requirements/sglang.txt
	@$(CHECK_PYTHON)
	@echo 'setup: $(SGLANG_VENV), the packages of SGLang: minutes and 3 GB the first time'
	@$(PYTHON) -m venv $(SGLANG_VENV)
	@$(SGLANG_VENV)/bin/python -m pip --disable-pip-version-check install -qq --no-deps -r $<
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

.PHONY: help demo all scaling map-study mix-study docker-all doctor lock-check images images-lock test-cluster test-containers test-faults plan dry-run scout verify clean test test-unit test-workflow test-engine test-sglang lint format setup \
  setup-dev config-exists
