# demo: see the promise kept, in a minute.   test: everything that is checked.   bench: tables and JSON.
# soak: the service under load for 30 minutes (MINUTES=N); fails if something grows that should not.
# chaos: 200 random events (EVENTS=N) against one job, from a new seed (SEED=N: that one again).
.PHONY: demo test bench soak chaos clean

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/stamp

demo: $(STAMP)
	$(BIN)/easyscale demo

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

bench: $(STAMP)
	@for script in $(filter-out benchmarks/soak.py,$(wildcard benchmarks/*.py)) benchmarks/elastic/switch.py benchmarks/elastic/recovery.py benchmarks/elastic/steady.py; do \
		[ -e "$$script" ] || { echo "no benchmarks yet"; break; }; \
		echo "== $$script"; $(BIN)/python "$$script" || exit 1; \
	done

MINUTES ?= 30
soak: $(STAMP)
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES)

EVENTS ?= 200
SEED ?= $(shell date +%s)
chaos: $(STAMP)
	EASYSCALE_CHAOS_EVENTS=$(EVENTS) EASYSCALE_CHAOS_SEED=$(SEED) $(BIN)/pytest -s tests/chaos

# What the compiled D2 kernels are made of: installing again builds them again.
KERNELS := src/easyscale/numerics/kernels
COMPILED := hatch_build.py $(KERNELS)/native/library.py \
	$(wildcard $(KERNELS)/formula*.py $(KERNELS)/tracing.py $(KERNELS)/emit_c.py $(KERNELS)/native/c/*.[ch])

# torch by its exact version comes first: an open requirement would bring gigabytes of CUDA along.
$(STAMP): pyproject.toml constraints.txt $(COMPILED)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist easyscale-demo.png
