# One name for each step; .ci/run calls the same names.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install lint test slow wheel bench bench-smoke clean

# Everything that the steps below need, into .venv.
install: .venv/installed

.venv/installed: pyproject.toml Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name '*.toml')
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[test]'
	touch $@

# Formatting, lints with warnings as errors, types in strict mode, and the stub against the built module.
lint: install
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --package poolplan-core --no-deps --locked --quiet
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/python -m mypy.stubtest poolplan._core --ignore-disjoint-bases

test: install
	cargo test --workspace --locked
	$(BIN)/pytest

# The sweeps: 100,000 hypothesis examples and 10 million proptest cases for each law.
slow: install
	PROPTEST_CASES=10000000 cargo test --release --package poolplan-core --test laws --locked
	HYPOTHESIS_PROFILE=slow $(BIN)/pytest -m slow

# The wheel, installed into a virtual environment that has nothing else, plans a model.
wheel: install
	rm -rf target/wheels target/wheel-check
	$(BIN)/pip wheel --quiet --no-deps --wheel-dir target/wheels .
	$(PYTHON) -m venv target/wheel-check
	target/wheel-check/bin/pip install --quiet target/wheels/poolplan-*.whl
	cd target && wheel-check/bin/poolplan plan openai/gpt-oss-120b --available 60GiB --json
	cd target && wheel-check/bin/python -c "import sys, poolplan; assert not {'numpy', 'rich', 'torch', 'huggingface_hub'} & set(sys.modules)"

# The tables of ratios: the core alone, then through Python against the reference.
bench: install
	cargo bench --package poolplan-core --locked
	$(BIN)/pytest benches --benchmark-enable --benchmark-columns=min,median,rounds
	$(BIN)/python benches/ratios.py

# Every benchmark once, so that they keep working.
bench-smoke: install
	cargo bench --package poolplan-core --locked -- --test
	$(BIN)/pytest benches

clean:
	rm -rf target .venv
