# UltraServe: every way to run it from a checkout. `make` alone lists them.
#
# Each target first sees to it that .venv is there and up to date; .ci/install.py decides that by
# the content of constraints.txt, pyproject.toml and the kernels' sources, and costs a tenth of a
# second when it is.

# The first of the two that really is a Python 3.11. Another: make PYTHON=/path/to/python3.11
PYTHON ?= $(shell for name in python3.11 python3; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null \
	&& echo "$$name" && break; done)

FIND_PYTHON = python="$(PYTHON)"; test -n "$$python" \
	|| { echo "error: UltraServe needs Python 3.11, and none was found on PATH" >&2; exit 1; }

# More arguments for the command behind demo, the tests, mutations, attack and benchmarks: make test ARGS="-k hbm"
ARGS ?=

BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help install system-deps gateway-deps demo test-fast test test-units test-processes test-slow test-slow-chips test-slow-others test-hours mutations conformance attack check protos protos-check dashboards rules console format site benchmarks clean always

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

install: .venv/.installed ## build .venv, as every target that needs it does

system-deps: ## install what tests need from Debian (Prometheus, Chromium), unless it is there
	@$(FIND_PYTHON); "$$python" .ci/system_deps.py

gateway-deps: .venv/.installed ## install smg, the gateway of deploy/gateway, for the tests that need it
	$(BIN)/python -m tests.conformance.pinned_environment smg

demo: .venv/.installed ## serve on one emulated compute tray, load it, report to demo-report.json
	$(BIN)/ultraserve demo --report demo-report.json $(ARGS)

# A test module's rewritten assertions are half of what it costs to collect it: they are kept, also
# where the environment says that Python keeps no bytecode.
test-fast test-units test-processes test-slow-chips test-slow-others test-hours mutations: export PYTHONDONTWRITEBYTECODE =

# Workers that divide the files before they import them: importing all takes each a sixth of test-fast.
# One that dies ends the run: another would find no files that are its own.
SHARES = -n logical --dist each --shares --max-worker-restart 0

test-fast: .venv/.installed ## run the tests that start no process and take no time (90 s)
	$(BIN)/pytest --fast $(SHARES) $(ARGS)

# Tests with processes wait most of the time, so that the others run beside them, and print first.
# Those with engines share a server, and so have one worker; the rest go to whichever worker waits.
# The status 5 says that ARGS chose none.
SPREAD = -n logical --dist loadfile --no-loadscope-reorder

test: .venv/.installed ## run the everyday tests: those with processes beside the others (10 min)
	@$(MAKE) --no-print-directory --keep-going --jobs 2 test-units test-processes

test-units: .venv/.installed
	$(BIN)/pytest --part units -m "not slow" $(SHARES) $(ARGS) || test $$? -eq 5

test-processes: .venv/.installed
	@out=$$(mktemp); failed=0; for part in chips "processes $(SPREAD)"; do \
		$(BIN)/pytest --part $$part -m "not slow" $(ARGS) || test $$? -eq 5 || failed=1; \
		done >"$$out" 2>&1; cat "$$out"; rm "$$out"; exit $$failed

test-slow: .venv/.installed gateway-deps ## run the tests that take minutes, and every property on many examples
	@$(MAKE) --no-print-directory --keep-going --jobs 2 test-slow-chips test-slow-others

test-slow-chips: .venv/.installed
	$(BIN)/pytest -m "slow and not hours and (engine or fleet)" $(ARGS) || test $$? -eq 5

test-slow-others: .venv/.installed
	@out=$$(mktemp); failed=0; { \
		$(BIN)/pytest -m "slow and not hours and not (engine or fleet)" $(ARGS) \
			|| test $$? -eq 5 || failed=1; \
		$(BIN)/pytest -m "hypothesis and not slow and not process" --hypothesis-profile thorough \
			$(SPREAD) $(ARGS) || test $$? -eq 5 || failed=1; \
		} >"$$out" 2>&1; cat "$$out"; rm "$$out"; exit $$failed

test-hours: .venv/.installed ## strike a server of 144 chips 214 times, alone on a host of 16 GB (1 to 3 h)
	$(BIN)/pytest -m hours -s $(ARGS)

mutations: .venv/.installed ## plant 40 small faults, one at a time; test-fast catches 36 at least
	$(BIN)/python -m tests.mutations $(ARGS)

conformance: .venv/.installed ## other people's clients against a server, each in its own environment (25 min)
	$(BIN)/python -m tests.conformance $(ARGS)

attack: .venv/.installed ## attack a server of its own, on loopback alone; fails for what it does not stand (10 min)
	$(BIN)/python -m tests.attacks $(ARGS)

check: .venv/.installed ## lint, formatting, types, import layers and replaced words
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python .ci/words.py

protos: .venv/.installed ## regenerate the code of the wire contract, and the console's types
	$(BIN)/python -m protos.generate
	$(BIN)/python -m deploy.console_types

protos-check: .venv/.installed ## buf lint, buf breaking, generated code up to date (needs npm)
	$(BIN)/python -m protos.check
	$(BIN)/python -m deploy.console_types --check

dashboards: .venv/.installed ## write Grafana's dashboards from their sources
	$(BIN)/python -m deploy.grafana.generate

rules: .venv/.installed ## write the Prometheus operator's rules from Prometheus's own
	$(BIN)/python -m deploy.prometheus.generate

console: ## build the console's page from its sources (needs npm)
	cd deploy/console && npm ci --ignore-scripts && npm run build

format: .venv/.installed ## bring the code into its format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

site: ## build the guides into a searchable site in build/site (an environment of its own)
	@$(FIND_PYTHON); "$$python" .ci/site.py

benchmarks: .venv/.installed ## measure; prints figures (the soak also fails when its books do not close)
	$(BIN)/python -m tests.benchmarks $(ARGS)

clean: ## remove the environment, caches and reports
	rm -rf .venv .venv.lock .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	rm -rf .conformance .site-venv build ultraserve.egg-info demo-report.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: always
	@$(FIND_PYTHON); "$$python" .ci/install.py
