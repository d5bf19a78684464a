# Commands for a clean clone: `make demo` runs a demonstration, `make test` runs the tests.
#
# Everything is installed into .venv; stamp files keep the second call quick. Variables: PYTHON is
# the interpreter, TORCH the PyTorch to install with its torchvision, MINUTES the length of
# `make chaos`.

PYTHON  ?= python3
TORCH   ?= torch==2.13.0 torchvision==0.28.0
MINUTES ?= 5
EXTRAS   = bf16,demo,data,vision,dev

VENV  = .venv
BIN   = $(VENV)/bin
PIP   = $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP = $(VENV)/.installed
BUILT = $(VENV)/.native
TRIED = $(VENV)/.frameworks
REWRITTEN = $(VENV)/.rewritten

.DEFAULT_GOAL := help
.PHONY: help venv native demo test check format bench chaos clean

help:  ## show this list
	@sed -n 's/^\([a-z]*\):.*##/  make \1\t/p' $(MAKEFILE_LIST)

venv: $(STAMP) $(BUILT)  ## install smbox and its tools into .venv

# PyTorch is installed first. The pinned release prevents that pip selects another build
# (gigabytes of CUDA libraries) when it resolves the extras.
$(STAMP): pyproject.toml Makefile hatch_build.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "smbox needs Python 3.11 or newer as '$(PYTHON)'; have: $$($(PYTHON) --version 2>&1)."; \
	  echo "Debian or Ubuntu:  sudo apt-get install -y python3 python3-venv"; \
	  echo "Another one:       make $(or $(MAKECMDGOALS),venv) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot create virtual environments. On Debian or Ubuntu:"; \
	  echo "  sudo apt-get install -y python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) $(TORCH) -e ".[$(EXTRAS)]" || { \
	  echo "If posix_ipc could not be built, which has no wheels for Python 3.14 and newer:"; \
	  echo "  sudo apt-get install -y gcc python3-dev"; exit 1; }
	@$(BIN)/python -c 'import torchvision' 2>/dev/null || $(WITHOUT_OPERATORS)
	@touch $(STAMP) $(BUILT)

# PyPI's torchvision is built for CUDA. With a PyTorch for the CPU its operators do not load, and the
# import fails at two registrations that do not check whether their operator exists. This edit makes
# them check. Data sets, transforms and most models need no operators.
WITHOUT_OPERATORS = sed -i 's/^@torch.library.register_fake("torchvision::\(q*nms\)")/@register_meta("\1")/' \
	  $(VENV)/lib/python3*/site-packages/torchvision/_meta_registrations.py

# The tests of smbox_torch.integrations need training frameworks; without them they are skipped.
$(TRIED): $(STAMP)
	@$(PIP) $(TORCH) -e ".[$(EXTRAS),frameworks]" || \
	  echo "this index lacks some of the extra 'frameworks'; its tests are skipped"
	@touch $(TRIED)

# The installation builds the native library. This rule builds it again after a change of its sources.
$(BUILT): $(wildcard smbox/native/*.[ch]) smbox/native/compiling.py | $(STAMP)
	$(BIN)/python -P smbox/native/compiling.py
	@touch $(BUILT)

native: $(STAMP)  ## build the native library again
	$(BIN)/python -P smbox/native/compiling.py
	@touch $(BUILT)

demo: $(BUILT)  ## train a small model on several workers through one memory node
	mkdir -p out
	$(BIN)/smbox demo --plot out/demo.png

# The tests start thousands of Python processes. If PYTHONDONTWRITEBYTECODE is set, as in many
# containers, each of them compiles the modules that it imports, which is a third of its start time.
test: export PYTHONDONTWRITEBYTECODE =
# The processes of the tests already use all cores.
test: export OMP_NUM_THREADS = 1
test: $(BUILT) $(TRIED) $(REWRITTEN)  ## run every test, with more processes than cores (minutes)
	$(BIN)/python -m pytest --numprocesses $(TESTERS) --dist loadfile --no-loadscope-reorder

# Many tests wait for other processes or for leases. So there are more processes than cores; each of
# them takes half a gigabyte. (nproc would return OMP_NUM_THREADS instead of the number of cores.)
TESTERS = $$(( $$(env -u OMP_NUM_THREADS nproc) + 4 ))

# pytest rewrites the assertions of each test file and keeps the result beside the file. In a new clone
# all processes of `make test` would rewrite all files at once. Here each of two does a half first.
REWRITE = $(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider >/dev/null
$(REWRITTEN): | $(BUILT) $(TRIED)
	@$(REWRITE) tests/smbox_torch & $(REWRITE) --ignore=tests/smbox_torch; wait
	@touch $(REWRITTEN)

check: $(STAMP)  ## formatting, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## format the sources and fix what the linter can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(BUILT)  ## measure smbox and this machine's limits; writes out/bench.{json,md}
	mkdir -p out
	$(BIN)/smbox bench --json > out/bench.json
	$(BIN)/python benchmarks/table.py out/bench.json | tee out/bench.md

chaos: $(BUILT)  ## step every commit, kill publishers, then kill, pause and cut at random for MINUTES
	$(BIN)/python -m smbox.testing.stepping
	$(BIN)/python benchmarks/publishing_kills.py
	$(BIN)/python -m smbox.testing.chaos --minutes $(MINUTES)

clean:  ## remove .venv and all generated files
	rm -rf $(VENV) out dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache *.egg-info smbox/native/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
