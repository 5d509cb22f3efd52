# Slipway. `make demo` tells the main story on real parts; `make test` runs the whole suite. Nothing needs root or Docker.
SITE ?= real
SCENE ?= story
PY := .venv/bin/python

# Bytecode that is not kept is compiled at every start of every server.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check bench up down status install format schemas chaos
.DEFAULT_GOAL := help

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

install: .venv/ready ## the Python environment, below .venv

.venv/ready: pyproject.toml libs/sdk/pyproject.toml uv.lock
	@bash deploy/install.sh

demo: install ## the main job on real NetBox and Ironic, told on the terminal (SITE=sim: on the simulated site)
	@$(PY) -m deploy.demo --site $(SITE) --scene $(SCENE)

test: install ## the whole test suite, in two processes (ARGS=… goes to pytest)
	@$(PY) -m pytest -n 2 $(ARGS)

check: install ## seconds: format, lint, types, import rules, generated files, unit tests
	@$(PY) -m tools.check

bench: install ## the table of measurements; writes bench/results/latest.json
	@$(PY) -m bench

chaos: install ## the running system under seeded faults, judged (SEED=… FAULTS=… KINDS=… RUNS=… HUBS=3)
	@$(PY) -m chaos $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(KINDS),--kinds $(KINDS)) \
	  $(if $(RUNS),--runs $(RUNS)) $(if $(HUBS),--hubs $(HUBS))

up: install ## the whole system, left running (SITE=sim: simulated site)
	@$(PY) -m deploy.local up --site $(SITE)

down: install ## stop it
	@$(PY) -m deploy.local down --site $(SITE)

status: install ## what runs, and where the logs are
	@$(PY) -m deploy.local status --site $(SITE)

format: install ## format the code
	@.venv/bin/ruff check --fix -q . ; .venv/bin/ruff format -q .

schemas: install ## generate schemas/ and the diagrams in docs/architecture
	@$(PY) -m tools.generate
