# Two commands on a fresh machine: `make run` does the main job, `make test` passes the tests.
# Both set up their own environment in .venv first, and again only when the requirements change.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
OUT    ?= assay-out
JOBS   ?= 2

REQUIREMENTS := pyproject.toml constraints.txt

# Peers that would bring a torchvision for another torch; the studies load only what does not need it.
WITHOUT_DEPENDENCIES := dro torchattacks

.PHONY: help run test docs clean lint

help:
	@echo "make run    set up, run the quick studies, print the table of claims, write the report"
	@echo "make test   set up, check style and architecture, run all tests"
	@echo "make docs   set up, build the documentation into docs/_build/html"
	@echo "make clean  remove the environment, results and built documentation"

run: $(VENV)/.ready-run
	@echo "== running the quick studies (finished cells are kept in $(OUT) and reused)"
	@status=0; $(BIN)/assay check --no-fail-on-claims --out $(OUT) || status=$$?; \
	if [ $$status -gt 1 ]; then exit $$status; fi; \
	echo "== writing the report"; \
	$(BIN)/assay report --out $(OUT) && exit $$status

test: $(VENV)/.ready-test lint
	@echo "== tests"
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

lint: $(VENV)/.ready-test
	@echo "== style"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "== architecture"
	@$(BIN)/lint-imports --no-cache

docs: $(VENV)/.ready-docs
	@echo "== documentation"
	@$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	@echo "== docs/_build/html/index.html"

$(VENV)/.ready-run: EXTRAS := peers
$(VENV)/.ready-test: EXTRAS := peers,gambit,ray,dev
$(VENV)/.ready-docs: EXTRAS := peers,docs

$(VENV)/.ready-%: $(REQUIREMENTS) | $(VENV)/bin/python
	@echo "== installing assay[$(EXTRAS)] into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -c constraints.txt -e ".[$(EXTRAS)]" \
		> $(VENV)/install.log 2>&1 || { tail -n 30 $(VENV)/install.log; exit 1; }
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps -c constraints.txt $(WITHOUT_DEPENDENCIES) \
		>> $(VENV)/install.log 2>&1 || { tail -n 30 $(VENV)/install.log; exit 1; }
	@touch $@

$(VENV)/bin/python:
	@echo "== creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit("Python >= 3.11 is needed; set PYTHON=...") if sys.version_info < (3, 11) else 0'
	@$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) $(OUT) docs/_build docs/gallery docs/api/generated .pytest_cache .ruff_cache .hypothesis .import_linter_cache
