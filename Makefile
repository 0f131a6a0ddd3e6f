# What people and CI run. Every target makes the virtual environment first; that costs nothing twice.
PYTHON ?= python3
PY := .venv/bin/python
TEST_WORKERS ?= 2
# Files in the tree's order: whole jobs come before small tests, so that no worker is left with one at
# the end, and files of one folder follow each other and share its platform.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder \
	--durations 25 --durations-min 5

.PHONY: help venv demo up guest doctor test test-slow check accept bench-step bench-engine bench-schedule bench-sandbox bench-density bench-e2e openapi format constraints clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

venv:  ## the virtual environment in .venv
	@$(PYTHON) scripts/make_venv.py

demo: venv  ## train a small model end to end through the public API; KEEP=1 leaves the platform up
	@$(PY) -m supervisor.demo

up: venv  ## the whole platform in the foreground, until Ctrl-C
	@$(PY) -m supervisor.up

guest:  ## install what microVM sandboxes are made of (Debian and its relatives)
	@bash scripts/install_guest.sh

doctor: venv  ## what this machine has and lacks
	@$(PY) -m supervisor.doctor

test: venv  ## the suite, with real Postgres, Valkey, workers and sandboxes
	$(PYTEST) -m "not slow and not accept"

test-slow: venv  ## the tests that take longer
	$(PYTEST) -m "slow and not accept" --timeout 900

check: venv  ## formatting, lint, types, import contracts, architecture, OpenAPI drift
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy .
	.venv/bin/lint-imports
	$(PY) -m pytest -q tests/architecture
	$(PY) scripts/openapi.py --check

accept: venv  ## whole jobs and measured times; FULL=1 for every seed and cell
	@failed=0; export FULL=$(FULL); \
	OMP_NUM_THREADS=1 $(PY) -m pytest -m accept --timeout 3600 --durations 15 -s --ignore tests/accept/recovery || failed=1; \
	$(PYTEST) --dist load -m accept tests/accept/recovery || failed=1; \
	exit $$failed

bench-step: venv  ## what one step of the coordinator costs at 100,000 live rollouts; JSON=1 for JSON
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.step $(if $(JSON),--json)

bench-engine: venv  ## the embedded engine on one core, beside others; PARTS="rate hits", JSON=1; about 10 minutes
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.engine $(if $(PARTS),--parts $(PARTS)) $(if $(JSON),--json)

bench-schedule: venv  ## the scheduling benchmark (hours; MINUTES=60 bounds a call, the next goes on; COMPILED=1: a third of the CPU); QUICK=1 for CI
ifdef QUICK
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.schedule.quick
else
	@OMP_NUM_THREADS=1 $(PY) -m $(if $(COMPILED),benchmarks.schedule.compiled )benchmarks.schedule.cells $(if $(MINUTES),--minutes $(MINUTES)); status=$$?; \
	$(PY) -m benchmarks.schedule.report; exit $$status
endif

bench-sandbox: venv  ## the sandbox pool on recorded memory, one core, minutes; JSON=1, WRITE=1 for docs/benchmarks/
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.sandbox $(if $(JSON),--json) $(if $(WRITE),--write docs/benchmarks)

bench-density: venv  ## 300 paired rollouts of shell, a group at a time and on a full node: no verdict may flip; minutes
	@$(PY) -m benchmarks.density $(if $(JSON),--json)

bench-e2e: venv  ## strategies on the real stack, by the wall clock (hours; MINUTES=60 bounds a call, the next goes on); QUICK=1: minutes
ifdef QUICK
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.e2e --quick
else
	@OMP_NUM_THREADS=1 $(PY) -m benchmarks.e2e $(if $(MINUTES),--minutes $(MINUTES)); status=$$?; \
	$(PY) -m benchmarks.e2e.report; exit $$status
endif

openapi: venv  ## write docs/reference/openapi.json from the API
	$(PY) scripts/openapi.py

format: venv  ## rewrite the tree's formatting
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

constraints:  ## pin dependencies anew (needs uv)
	$(PYTHON) scripts/compile_constraints.py

clean:  ## remove the environment, caches and this tree's installation
	rm -rf .venv .venus .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis out
