# Everything works inside .venv, which `make setup` creates; each target below sets up what it needs.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo explore test check bench clean

setup: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all,dev]"
	touch $@

demo: setup
	$(BIN)/coattend compare p4cnn:head=max,width=11 p4cnn:attention=gate,head=max z2cnn
	$(BIN)/coattend check p4cnn:attention=gate,head=max
	$(BIN)/coattend report runs/mini

explore: demo
	$(BIN)/coattend explore runs/mini/p4cnn_head=max,width=11/quick/seed0 runs/mini/p4cnn_attention=gate,head=max/quick/seed0

test: setup
	$(BIN)/python -m pytest --numprocesses 2 -m "not slow"

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror src/coattend/functional/_kernels/*.h src/coattend/functional/_kernels/*.cpp
	$(BIN)/mypy
	$(BIN)/python -m pytest --numprocesses 2

bench: setup
	$(BIN)/python -m benchmarks.speed

clean:
	rm -rf .venv
