# Each target makes .venv when it is missing or older than what it is made from.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ENGINES := .venv-engines
ENGINES_STAMP := $(ENGINES)/.installed
OUT ?= out
ARGS ?=
COQC ?= coqc
PROOFS := Stream Replay Revert Moments Normals Answers

.PHONY: help setup paper test thorough device anywhere engines golden prove mutants fuzz lint types docs linkcheck notebooks format clean

help:
	@echo "make paper   every figure and table as recorded, then checked by live runs -> $(OUT)/report.html (ARGS=--live-only for live runs alone)"
	@echo "make test    the tests, linter and type checker"
	@echo "make thorough the tests that take long: kernels in an interpreter, memory at several sizes, wide tables, benchmarks"
	@echo "make anywhere the same bits with other instructions and libraries, and on ARM by an emulator where apt-get is there"
	@echo "make device  what a machine with a GPU can say, in eight minutes: bits, laws, a replayed digest, ratios, κ of large models -> $(OUT)/device.json"
	@echo "make engines the tests of Ray, NVFlare and gRPC, in an environment that has them all ($(ENGINES))"
	@echo "make golden  what every command's --help says, written to tests/decomfl_lab/cli/help.txt: read its diff"
	@echo "make prove   what Coq proves of replay, the noise stream and the moments (a minute; see docs/proved.md)"
	@echo "make mutants small changes of the core's source, each to be noticed by laws or tests (ARGS='--sample 30' for fewer)"
	@echo "make fuzz    ten million damaged messages to the decoders (ARGS='--runs 100000' for fewer)"
	@echo "make docs    the site of docs/, with the public names, the commands and the examples -> $(OUT)/docs/html/index.html"
	@echo "make notebooks the tutorials as notebooks, to play with -> $(OUT)/notebooks (ARGS=--run runs them)"
	@echo "make linkcheck every link of the site; those to other machines need a network"
	@echo "make setup | lint | types | format | clean"

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed, got {sys.version.split()[0]} (set PYTHON=...)")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
# backpack asks for torchvision for its examples alone; beside a build of torch that is not its own, a torchvision
# breaks transformers.
	$(BIN)/python -m pip uninstall --quiet --disable-pip-version-check --yes torchvision
	@touch $(STAMP)

setup: $(STAMP)

paper: $(STAMP)
	$(BIN)/decomfl paper --out $(OUT) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

# The type checker works beside the tests, and is heard at their end. Two processes of tests share two cores, a thread
# each; what Python has compiled is kept, as hundreds of others import the lab.
test thorough: export OMP_NUM_THREADS = 1
test thorough: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP) lint
	@$(BIN)/mypy > $(VENV)/types.txt 2>&1 & types=$$!; \
	$(BIN)/pytest -n 2 --dist worksteal -m "not thorough" $(ARGS); tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/types.txt; exit $$((tests | types))

thorough: $(STAMP)
	$(BIN)/pytest -n 2 --dist worksteal -m thorough $(ARGS)

device: $(STAMP)
	@mkdir -p $(OUT)
	$(BIN)/python -m benchmarks.card --out $(OUT)/device.json $(ARGS)

anywhere: $(STAMP)
	-sh tests/anywhere/aarch64.sh $(OUT)/aarch64 $(abspath $(BIN))/pip
	DECOMFL_AARCH64=$(abspath $(OUT))/aarch64 $(BIN)/pytest tests/anywhere $(ARGS)

$(ENGINES_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[nvflare,ray,stream]' pytest sybil
	@touch $(ENGINES_STAMP)

engines: $(ENGINES_STAMP)
	$(ENGINES)/bin/pytest -m engine $(ARGS)

golden: $(STAMP)
	PYTHONUTF8=1 $(BIN)/python -m tests.decomfl_lab.cli.golden > tests/decomfl_lab/cli/help.txt
	@git diff --stat -- tests/decomfl_lab/cli/help.txt

# The known answers are written as statements first; each file prints what its theorems assume.
prove: $(STAMP)
	@if ! command -v $(COQC) > /dev/null; then \
		echo "nothing is proved: there is no $(COQC) (Debian, Ubuntu: apt-get install coq libcoq-flocq libcoq-interval)"; \
	else \
		set -e; mkdir -p $(OUT)/proofs; cp proofs/*.v $(OUT)/proofs; \
		$(BIN)/decomfl noise --vectors | $(BIN)/python proofs/answers.py > $(OUT)/proofs/Answers.v; \
		for each in $(PROOFS); do echo "$$each.v"; (cd $(OUT)/proofs && $(COQC) $$each.v); done; \
	fi

mutants: $(STAMP)
	$(BIN)/python -m tests.mutants $(ARGS)

fuzz: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz --out $(OUT)/fuzz $(ARGS)

docs: BUILDER = html
linkcheck: BUILDER = linkcheck
docs linkcheck: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/sphinx-build -W --keep-going -q -b $(BUILDER) -d $(OUT)/docs/doctrees docs $(OUT)/docs/$(BUILDER) $(ARGS)

notebooks: $(STAMP)
	$(BIN)/python -m tests.docs.notebooks $(OUT)/notebooks $(ARGS)

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(ENGINES) $(OUT) docs/gallery docs/reference/api docs/reference/commands docs/sg_execution_times.rst .pytest_cache .mypy_cache .ruff_cache .hypothesis
