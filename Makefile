# Every target works in a fresh clone: the first one creates the environment.
#
# Variables, as in `make run CONF='{"epochs": 3}'`:
#   DAG       the pipeline that `run` runs                  CONF      its params, as JSON
#   RUNS      the number of trainings of `chaos`            SEED      of its random faults
#   LAUNCHER  of these trainings: process or kubernetes     ELASTIC   1: workers come and go instead
#   PORT      of the UI of `up`: 8080                       HOME_DIR  the folder of `run` and `up`
#   WORKERS   the number of test processes: each takes 3 GiB; one more than cores, as tests wait
# and of `images`:
#   BASE      the base image, for example that of your platform team
#   TAG       their tag                                     EXTRAS    of the training image
#   DOCKER_BUILD  the build command, to add options or to use podman
#   ACCELERATOR   gpu builds the training image for GPUs

DAG ?= digits
CONF ?= {}
RUNS ?= 30
SEED ?= 1
LAUNCHER ?= process
ELASTIC ?=
PORT ?=
WORKERS ?= 3
HOME_DIR ?= .local
export CONF
BASE ?=
TAG ?= dev
EXTRAS ?= tensorflow examples
ACCELERATOR ?= cpu
DOCKER_BUILD ?= docker build

BENCHMARKS := pipeline strategies network scale triggerer recovery elastic records input prepare gate serving

LOCKS := requirements.lock images/training/gpu/requirements.lock images/uv-requirements.lock

UPLOT := 1.6.32
PIP_AUDIT := 2.10.1
VENDOR := plugins/aerotrain_airflow/run_page/static/vendor

BIN := .venv/bin
READY := .venv/.ready
UV := $(or $(shell command -v uv),.uv/bin/uv)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run up down test pytest test-fast lint format test-cluster chaos images env bench docs lock \
	audit vendor

help: ## list the targets (also: make alone)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

# exec: a signal to make must reach the command itself, not a shell in between.
run: $(READY) ## run one complete pipeline, from raw data to a SavedModel and a report
	@exec $(BIN)/python -m devtools run --home "$(HOME_DIR)" --dag "$(DAG)" --conf "$$CONF"

up: $(READY) ## start Airflow in the background, and print the address of its UI (PORT=8080)
	@exec $(BIN)/python -m devtools up --home "$(HOME_DIR)" $(if $(PORT),--port "$(PORT)")

down: $(READY) ## stop what `make up` started
	@exec $(BIN)/python -m devtools down --home "$(HOME_DIR)"

# mypy takes half a minute of one core, so the tests run meanwhile.
test: $(READY) ## run lint, and every test that needs no cluster
	@$(MAKE) --no-print-directory --jobs 2 lint pytest

# A worker gets whole files, because the tests of a file share fixtures that are slow to create.
# TensorFlow's idle threads spin: with one in each process, tests that train take a seventh less CPU.
pytest: $(READY)
	TF_NUM_INTRAOP_THREADS=1 UV=$(UV) $(BIN)/pytest -m "not cluster" --durations=25 \
		--numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# Excludes files that are marked as a whole: most of them import TensorFlow.
test-fast: $(READY) ## run the pure tests, which start no process (within a minute)
	$(BIN)/pytest -m "not process and not cluster" --quiet --durations=5 \
		$$(grep --files-without-match '^pytestmark = .*\(process\|cluster\)' tests/test_*.py)

lint: $(READY) ## run ruff, mypy and import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## format and fix the code with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test-cluster: $(READY) ## run the tests that need the Kubernetes that KUBECONFIG names
	$(BIN)/pytest -m cluster

chaos: $(READY) ## inject faults into running trainings, RUNS times, and print the results
	@PYTHONPATH=tests $(BIN)/python -m chaos --launcher $(LAUNCHER) --runs $(RUNS) --seed $(SEED) \
		$(if $(ELASTIC),--elastic)

# Packages come from the index that pip uses here. Its address is a build secret, because it may
# contain a password.
images: ## build the images of Airflow and of a replica: aerotrain-airflow, aerotrain-training
	@export PIP_INDEX_URL="$${PIP_INDEX_URL:-$$(python3 -m pip config get global.index-url 2>/dev/null)}"; \
	build() { $(DOCKER_BUILD) $(if $(BASE),--build-arg "BASE=$(BASE)") \
		$${PIP_INDEX_URL:+--secret id=index,env=PIP_INDEX_URL} "$$@" .; }; \
	build --build-arg "EXTRAS=$(EXTRAS)" --build-arg "ACCELERATOR=$(ACCELERATOR)" \
		--file images/training/Dockerfile --tag "aerotrain-training:$(TAG)" && \
	build --file images/airflow/Dockerfile --tag "aerotrain-airflow:$(TAG)"

env: .env ## write .env for `docker compose up`, with new secrets

.env:
	@umask 077; while IFS= read -r line; do \
		case $$line in *=) \
			secret=$$(head -c 32 /dev/urandom | base64 | tr '+/' '-_'); \
			[ $${#secret} -eq 44 ] || { echo "no secret could be made for $$line" >&2; exit 1; }; \
			line="$$line$$secret";; \
		esac; \
		printf '%s\n' "$$line"; \
	done < .env.example > $@

bench: $(READY) ## run the benchmarks, write their tables to benchmarks/results/, and compare with their aims
	@missing=; for tool in ip tc; do command -v $$tool >/dev/null || missing="$$missing iproute2"; done; \
	[ -d /usr/share/datasets/fashion-mnist ] || missing="$$missing dataset-fashion-mnist"; \
	[ "$$(id -u)" = 0 ] || missing="$$missing root"; \
	[ -z "$$missing" ] || { echo "the benchmarks need:$$missing (the packages are Debian's)"; exit 1; }
	@mkdir -p benchmarks/results
	@for name in $(BENCHMARKS); do \
		echo "benchmarks.$$name"; \
		UV=$(UV) $(BIN)/python -m benchmarks.$$name > benchmarks/results/$$name.md.new || exit 1; \
		mv benchmarks/results/$$name.md.new benchmarks/results/$$name.md; \
		cat benchmarks/results/$$name.md; \
	done
	@$(BIN)/python -m benchmarks.aims --before

docs: $(READY) ## write docs/options.md, docs/steps.md, docs/inputs.md and README's figures, and the site of all pages, .site/html
	PYTHONPATH=tests $(BIN)/python -m support.nasty_inputs > docs/inputs.md
	$(BIN)/python -m benchmarks.aims --write README.md
	$(BIN)/python -m devtools.pages
	$(BIN)/mkdocs build --strict

lock: | $(UV) ## write every requirements.lock, after a change of dependencies in pyproject.toml
	$(UV) pip compile --universal --generate-hashes --python-version 3.11 --all-extras \
		--group dev --group devtools --quiet pyproject.toml -o requirements.lock
	$(UV) pip compile --universal --generate-hashes --python-version 3.11 --no-config \
		--quiet pyproject.toml --extra tensorflow --extra examples images/training/gpu/requirements.in \
		--override images/training/gpu/overrides.txt --constraint requirements.lock \
		-o images/training/gpu/requirements.lock
	echo uv | $(UV) pip compile --universal --generate-hashes --python-version 3.11 --no-annotate \
		--quiet - -o images/uv-requirements.lock

audit: | $(UV) ## check the locks for known vulnerabilities, by pip-audit (needs a network)
	@$(UV) tool run pip-audit@$(PIP_AUDIT) --disable-pip --require-hashes \
		$(addprefix --requirement ,$(LOCKS))

# The charts of the run page. npm checks the hash of the package; the files are committed.
vendor: ## fetch uPlot, UPLOT, for the run page (needs npm)
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	npm pack --silent --pack-destination "$$folder" "uplot@$(UPLOT)" > /dev/null && \
	tar -xzf "$$folder/uplot-$(UPLOT).tgz" -C "$$folder" && \
	install -D -m 644 -t "$(VENDOR)" "$$folder/package/LICENSE" \
		"$$folder/package/dist/uPlot.iife.min.js" "$$folder/package/dist/uPlot.min.css"

# Bytecode is compiled here: without it, importing TensorFlow takes 16 s instead of 6 in every
# replica, if PYTHONDONTWRITEBYTECODE is set.
$(READY): requirements.lock pyproject.toml | $(UV)
	@echo "setting up .venv: a Python from 3.11 to 3.13 …"
	@$(UV) venv --quiet --allow-existing --python ">=3.11,<3.14" .venv
	@echo "installing the $$(grep -c '^[a-z0-9].*==' requirements.lock) packages of requirements.lock," \
		"Airflow and TensorFlow among them: 3 GB, one to two minutes …"
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes --compile-bytecode requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# Only if uv is not on the PATH; otherwise `command -v` above gives a path without a rule.
.uv/bin/uv:
	@command -v python3 >/dev/null || \
		{ echo "python3 is missing: install Python 3.11 to 3.13 (on Debian: apt install python3-venv)"; exit 1; }
	@echo "installing uv into .uv, once …"
	@python3 -m venv .uv || \
		{ rm -rf .uv; echo "python3 has no venv: install it (on Debian: apt install python3-venv)"; exit 1; }
	@.uv/bin/pip install --quiet --disable-pip-version-check --require-hashes \
		--requirement images/uv-requirements.lock || \
		{ rm -rf .uv; echo "uv could not be installed: see what pip says above"; exit 1; }
