PYTHON ?= python3
BIN := .venv/bin
N ?= 2000

.PHONY: report smoke test fuzz huggingface lint format bench bench-ntk bench-optim docs clean

# The lab at smoke scale: every study in the budget of three minutes, then one HTML page.
report: .venv/installed
	$(BIN)/torchtangent reproduce --all --scale smoke --jobs 2 --out runs
	$(BIN)/torchtangent report runs results --out report/index.html

# Everything at smoke scale, also what does not fit into `make report`.
smoke: .venv/installed
	$(BIN)/torchtangent reproduce --all --scale smoke --long --out runs
	$(BIN)/torchtangent report runs results --out report/index.html

# Everything, then a part of it again with shapes checked at every call.
test: lint
	$(BIN)/pytest -n 2 --dist worksteal -q src tests
	TORCHTANGENT_SHAPES=1 $(BIN)/pytest -n 2 --dist worksteal -q tests

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The fuzzer draws N whole architectures and compares every quantity with the oracle.
fuzz: .venv/installed
	FUZZ_EXAMPLES=$(N) $(BIN)/pytest -n 2 -q tests/test_fuzz.py

# Thirty architectures of Hugging Face against the oracle; `make test` leaves them out, as transformers is no dependency.
huggingface: .venv/installed
	$(BIN)/pip install -q -c constraints.txt -e ".[huggingface]"
	$(BIN)/pytest -n 2 -q tests/test_huggingface.py

# Us and the peers in an environment of its own; ARGS="--quick" to see that all runs.
bench: .bench-venv/installed
	.bench-venv/bin/python -m benchmarks.run $(ARGS)

# The tangent kernel; neural-tangents in an environment of its own.
bench-ntk: .bench-venv/installed .bench-nt-venv/installed
	.bench-venv/bin/python -m benchmarks.ntk.run $(ARGS)

# A training step of the optimizers, beside torch's and a public KFAC.
bench-optim: .bench-venv/installed
	.bench-venv/bin/pip install -q --no-deps asdfghjkl
	.bench-venv/bin/python -m benchmarks.optim $(ARGS)

docs: .venv/installed
	$(BIN)/pip install -q -c constraints.txt -e ".[docs]"
	$(BIN)/pdoc --math --output-dir site torchtangent

.venv/installed: pyproject.toml constraints.txt
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e ".[lab,test]"
	touch $@

.bench-venv/installed: pyproject.toml constraints.txt
	test -d .bench-venv || $(PYTHON) -m venv .bench-venv
	.bench-venv/bin/pip install -q -c constraints.txt -e ".[bench]"
	touch $@

.bench-nt-venv/installed: benchmarks/ntk/requirements.txt
	test -d .bench-nt-venv || $(PYTHON) -m venv .bench-nt-venv
	.bench-nt-venv/bin/pip install -q -r benchmarks/ntk/requirements.txt
	touch $@

clean:
	rm -rf .venv .bench-venv .bench-nt-venv build dist runs report site
