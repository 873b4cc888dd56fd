# `make demo` and `make test` need only python3: each target builds .venv when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow browser test-browser fuzz bench lint docs wheel clean

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: .venv/.installed
	$(BIN)/oarlock demo

test: .venv/.installed lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs -n 2 --dist loadgroup -m 'not slow'

test-slow: .venv/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 -m slow

# Debian's Chromium, for tests of the studio's page, where it may be installed; where not, they are skipped and say so.
APT := DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20
browser:
	@command -v chromium >/dev/null || { $(APT) update && $(APT) install -y --no-install-recommends chromium >/dev/null; } \
		|| echo "Chromium is not here and could not be installed: tests of the studio's page are skipped"

# The page of the studio in an installed Chromium (`make browser`); says so where there is none.
test-browser: .venv/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -rs -m browser tests/studio

# Mutants of every kind of file that is read; a finding says how to have it once more.
N ?= 20000
FIRST ?= 0
fuzz: .venv/.installed
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m fuzz $(N) --first $(FIRST)

DATA ?= ../shared/data/cifar100.npz
bench: .venv/.installed
	$(BIN)/python benchmarks/run_all.py --data $(DATA)

lint: .venv/.installed
	$(BIN)/ruff check --quiet src tests benchmarks tools
	$(BIN)/ruff format --quiet --check src tests benchmarks tools
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The site, in build/site; to look at it: .venv/bin/mkdocs serve
docs: .venv/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# A source archive, the wheel made of it, and the demo by the wheel alone: in a new environment, far from this folder.
wheel: .venv/.installed
	rm -rf dist
	$(BIN)/python -m build --outdir dist . > /dev/null
	@du -k dist/* | awk '{ print; if ($$1 > 15000) { print "too large"; exit 1 } }'
	there=$$(mktemp -d) && trap "rm -rf $$there" EXIT && $(PYTHON) -m venv $$there/env \
	&& $$there/env/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl \
	&& cd $$there && env -u PYTHONPATH env/bin/oarlock methods > methods && env -u PYTHONPATH env/bin/oarlock demo

clean:
	rm -rf .venv build dist runs .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
