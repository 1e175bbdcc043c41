# make run    the word count over real files, on Spark slots, with embedded Redis and ZooKeeper
# make test   the tests of a commit (tests/tiers.py)       make lint, make types, make bench: what they say
# make test-all   every test: before a release, and each night
# make chaos SECONDS=600   harm five topologies, simulated and in processes, and report (docs/maintaining/test-suite.md)
# make browser   a walk through the page in headless Chromium, by keyboard, with axe-core (docs/maintaining/test-suite.md)
# make fuzz   Schemathesis against the web server of a simulated cluster, ARGS=--cluster of a real one (docs/maintaining/test-suite.md)
# make hosts   a cluster over several hosts (network namespaces; as root), cut, slowed down and switched off (docs/maintaining/test-suite.md)
# make yarn   the word count on YARN, Hadoop's mini cluster on this machine, under deaths of a slot and an executor (docs/maintaining/test-suite.md)
# make perf   whole pipelines of this tree and of another commit, in turn; fails beyond noise (benchmarks/README.md)
# make matrix   the oldest and newest of the dependencies, and Pythons, each in an environment of its own (docs/maintaining/platforms.md)
#               make matrix ARGS=--servers: the contracts of stores over the packaged Valkey, Redis 6.2 and Debian's 7.0
# make docs   the documentation as a site, build/docs/index.html, every link of it followed, its search asked (docs/maintaining/test-suite.md)
# make bare   the tutorial on a bare Debian, from its first command on (as root; ARGS='--suite bookworm'; docs/maintaining/test-suite.md)
# make wheels   this platform's wheel, repaired by auditwheel where that works, the pure one and the sdist, in dist/
# make mutants   one-line changes of the commit path, each of which a named test must see (docs/maintaining/test-suite.md)
# make asan   the compiled core's tests under AddressSanitizer and UndefinedBehaviorSanitizer (needs gcc; part of make test-all)
# make test-fast   the tests without the markers `system` and `slow` (setup.cfg)
# Everything works from nothing: .venv is made and filled first, and again only when setup.cfg changes.

PYTHON ?= python3
CONF ?= conf/wordcount.yaml
ARGS ?=
TESTS ?=
SECONDS ?= 60
# Files are dealt out whole (their fixtures are started once), in the order of tests/schedule.py. One process more than cores: tests
# of servers wait more than they compute (with one a core, two cores were 45 % busy)
PARALLEL ?= --numprocesses $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --maxprocesses 4 --dist loadfile --no-loadscope-reorder
VENV := .venv
BIN := $(VENV)/bin
SETTINGS := setup.cfg setup.py pyproject.toml requirements.lock sparkstorm/common/model/_core.c sparkstorm/common/model/_extensions.c sparkstorm/common/model/_frames.c sparkstorm/common/model/_hash.c sparkstorm/common/model/_msgpack.c sparkstorm/common/model/_values.c
# Spark's scripts and workers must find this Python and a Java that is new enough, whatever else is on PATH; and a run on
# one machine opens its ports on loopback alone
WITH_JAVA = JAVA_HOME="$$($(BIN)/python -m sparkstorm.extensions.embedded --install --home)" && export JAVA_HOME \
	&& export PATH="$(CURDIR)/$(BIN):$$PATH" PYSPARK_PYTHON="$(CURDIR)/$(BIN)/python" \
	PYSPARK_DRIVER_PYTHON="$(CURDIR)/$(BIN)/python" SPARK_CONF_DIR="$(CURDIR)/conf/spark" \
	SPARK_LOCAL_IP=127.0.0.1

# Spark's workers, slots and worker children are interpreters of their own: each would compile all its modules again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-all ready test-fast lint types bench perf browser fuzz chaos asan hosts yarn mutants matrix docs bare wheels install clean

run: $(VENV)/installed
	@$(WITH_JAVA) && exec spark-submit jobs/run_topology.py $(CONF) $(ARGS)

test: ready
	@$(WITH_JAVA) && exec python -m pytest $(if $(TESTS),,--tier commit $(PARALLEL)) $(TESTS)

test-all: ready
	@$(WITH_JAVA) && exec python -m pytest $(PARALLEL)

ready: $(VENV)/spark-classes/classes.jsa $(VENV)/compiled

test-fast: $(VENV)/installed-dev
	@$(BIN)/python -m pytest $(PARALLEL) -m 'not system and not slow' $(TESTS)

lint: $(VENV)/installed-dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/codespell *.md benchmarks conf docs examples jobs notebooks sparkstorm

types: $(VENV)/installed-dev
	@$(BIN)/mypy

bench: $(VENV)/installed-bench
	@$(WITH_JAVA) && for script in $$(grep -l __main__ benchmarks/*.py | grep -v perf.py); do \
		echo "== $$script"; python -m "benchmarks.$$(basename "$$script" .py)" || exit 1; done

perf: $(VENV)/installed-dev
	@$(WITH_JAVA) && exec python -m benchmarks.perf $(ARGS)

chaos: $(VENV)/installed-dev
	@$(WITH_JAVA) && exec python -m tests.chaos --seconds $(SECONDS) $(ARGS)

mutants: $(VENV)/installed-dev
	@$(BIN)/python -m tests.mutants $(ARGS)

hosts: $(VENV)/installed-dev
	@command -v ip >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq iproute2 >/dev/null; }
	@$(WITH_JAVA) && unset SPARK_LOCAL_IP SPARK_CONF_DIR && exec python -m tests.hosts $(ARGS)

yarn: $(VENV)/installed-dev
	@$(WITH_JAVA) && exec python -m tests.yarn $(ARGS)

browser: $(VENV)/installed-dev
	@command -v chromium chromium-browser google-chrome chrome >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check playwright axe-playwright-python && exec $(BIN)/python -m tests.browser $(ARGS)

# Schemathesis is in an environment of its own: its hypothesis is another one than that of the tests
fuzz: $(VENV)/installed-dev
	@test -x $(VENV)/fuzz/bin/schemathesis || { $(BIN)/python -m venv $(VENV)/fuzz && \
		$(VENV)/fuzz/bin/pip install --quiet --disable-pip-version-check schemathesis==4.32.5; }
	@$(WITH_JAVA) && exec python -m tests.web.fuzz $(CURDIR)/$(VENV)/fuzz/bin/schemathesis $(ARGS)

asan: $(VENV)/installed-dev
	@$(BIN)/python -m pytest -q -rs tests/executor/test_sanitized.py

matrix: $(VENV)/installed-dev
	@$(WITH_JAVA) && exec python -m tests.matrix $(ARGS)

docs: $(VENV)/installed-dev
	@$(BIN)/python -m tests.docs_site

bare: wheels
	@command -v debootstrap >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq debootstrap >/dev/null; }
	@$(BIN)/python -m tests.bare $(ARGS)

wheels: $(VENV)/installed-dev
	@rm -rf dist build && mkdir -p dist/built
	@SPARKSTORM_CORE=required $(BIN)/python -m build --wheel --outdir dist/built . >/dev/null
	@if [ "$$(uname)" = Linux ]; then PATH="$(CURDIR)/$(BIN):$$PATH" auditwheel repair --wheel-dir dist dist/built/*.whl 2>&1 | tail -1; \
		else mv dist/built/*.whl dist/; fi && rm -rf dist/built build
	@SPARKSTORM_CORE=none $(BIN)/python -m build --outdir dist . >/dev/null && rm -rf build && ls -1 dist

install: $(VENV)/installed

$(VENV)/installed: $(VENV)/made $(SETTINGS)
	@echo "installing SparkStorm and what it needs into $(VENV) (once; PySpark alone is some 400 MB) ..."
	@$(BIN)/python -m pip install --quiet --use-pep517 --disable-pip-version-check --constraint requirements.lock --editable '.[web]'
	@touch $@

# uv takes a tenth of pip's CPU for some hundred packages; it knows none of pip's settings (an index of one's own), so pip follows
# where it fails
TOOLS := --constraint requirements.lock --editable '.[test,dev,docs]'
$(VENV)/installed-dev: $(VENV)/installed
	@echo "installing the test tools into $(VENV) ..."
	@{ $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock uv && \
		$(BIN)/uv pip install --quiet --python $(BIN)/python $(TOOLS); } 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --use-pep517 --disable-pip-version-check $(TOOLS)
	@touch $@

# a third of a JVM's start, for each of the hundred that the tests start
$(VENV)/spark-classes/classes.jsa: $(VENV)/installed-dev tests/spark_classes.py
	@-$(WITH_JAVA) && exec python -m tests.spark_classes

# by one process: each of a run's would compile all modules of the tests, at the same time. Later the changed ones are compiled by
# the run. What cannot be imported is reported by the run too
$(VENV)/compiled: $(VENV)/installed-dev
	@$(BIN)/python -m pytest --collect-only --quiet -p no:cacheprovider >/dev/null 2>&1; touch $@

$(VENV)/installed-bench: $(VENV)/installed-dev
	@$(BIN)/python -m pip install --quiet --use-pep517 --disable-pip-version-check --constraint requirements.lock --editable '.[test,dev,bench]'
	@touch $@

# Debian ships venv without ensurepip: its package is added when that may be done, else named
$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
		package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			echo "installing $$package ..."; apt-get update -qq && apt-get install -y -qq "$$package" >/dev/null; \
		else echo "this Python cannot make virtual environments: install $$package (apt-get install $$package)" >&2; exit 1; fi; }
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

clean:
	rm -rf $(VENV) .matrix .bare build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
