# make run: set everything up and serve on http://localhost:8080, for this machine only (HOST=0.0.0.0: for others too).
# make test: set up and run all tests; make test FILE=tests/x: one file or folder. make check: lint and unit tests.
PYTHON ?= python3
PORT ?= 8080
HOST ?= $(or $(SERVE_HOST),127.0.0.1)
BIN := .venv/bin
DEBIAN := PYTHON=$(PYTHON) sh scripts/debian-packages
BUNDLED := bert efficientnet yolov4_tiny
MODELS := $(BUNDLED:%=model_repository/%/1/model.onnx)

# Always write bytecode, whatever the shell's environment says. Without it, importing torch and the tests takes each
# process another 10 s.
export PYTHONDONTWRITEBYTECODE =

.PHONY: run setup models dev ready test compiled packages check unit fuzz bench soak image release lint format lock clean

run: setup models
	@PORT=$(PORT) SERVE_HOST=$(HOST) SERVE_PAGE=$(or $(SERVE_PAGE),auto) SERVE_RELOAD=$(or $(SERVE_RELOAD),auto) \
	  exec $(BIN)/python serve

# The packages and the library that are needed to serve models, and to load a model at the end of its build.
SERVING := .venv/.serving .venv/triton/stub_wait.so
setup: $(SERVING)

models: $(MODELS)

# Clients and SDKs are installed into folders of their own, because their dependencies contradict each other.
CLIENTS := openapi callers sdks sdk3
dev: .venv/.dev $(CLIENTS:%=.venv/%/.installed)

# Set up everything. The models are built while packages are installed.
ready: setup
	@$(MAKE) --no-print-directory -j 2 dev models

# Tests run in four processes, each of which runs whole files, because most tests wait for servers to start and stop.
# torch gets one thread per process: several would wait for each other and take twice the processor time.
test unit: export OMP_NUM_THREADS = 1
test: ready
	@$(MAKE) --no-print-directory -j 2 --output-sync=target packages $(if $(FILE),,compiled lint)
	$(BIN)/python -m pytest $(or $(FILE:%=-n 0 %),-n 4 --dist loadfile --no-loadscope-reorder) $(PYTEST_ARGS)

# Compile the modules that the tests import, once and while mypy runs, rather than in each of the four processes.
compiled: dev
	@$(BIN)/python -m pytest --collect-only >/dev/null

packages:
	@$(DEBIAN) podman runc mmdebstrap wrk ip:iproute2 chromium promtool:prometheus

# Check style and types, and run the tests that do not start a server or import torch.
check: ready
	@$(MAKE) --no-print-directory -j 2 --output-sync=target unit lint

unit:
	$(BIN)/python -m pytest -m unit -n 2 --dist loadfile $(PYTEST_ARGS)

# Give the parsers EXECUTIONS inputs in total, derived from tests/fuzz/seeds.py and tests/fuzz/corpus. With
# FUZZ='image --keep', fuzz only the target `image`, and keep the inputs that reach new code. Then send requests to
# sequence models, one for every 50 inputs.
fuzz: setup dev
	@$(BIN)/python -m tests.fuzz $(FUZZ) --executions $(or $(EXECUTIONS),1000000)
	@FUZZ_CALLS=$$(($(or $(EXECUTIONS),1000000) / 50)) $(BIN)/python -m pytest -n 0 -q tests/fuzz/test_sequences.py

# Compare the speed with a minimal front, the network alone, Triton itself and four other servers (docs/benchmarks.md).
bench: setup models dev
	@$(DEBIAN) wrk
	@$(BIN)/python -m bench $(BENCH)

# Measure whether memory or descriptors grow under a constant load of MINUTES (docs/reliability.md).
soak: setup models dev
	@$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),60)

# Build the image IMAGE:TAG with ENGINE (docker, podman or buildah). TARGET=gpu builds the image for NVIDIA GPUs.
image:
	@$(PYTHON) scripts/image/build.py $(TARGET)

# Commit and tag the version VERSION=1.2.3. The image's label, /models and the changelog then show it.
release:
	@$(PYTHON) scripts/release.py "$(VERSION)"

lint: dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/hadolint Dockerfile
	$(BIN)/mypy . serve

format: dev
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

# Write the lock files for the groups in pyproject.toml. Most of them take the versions in a larger lock file (-c).
lock: .venv/.serving
	$(LOCK) pyproject.toml --group dev -o requirements/dev.lock
	$(LOCK) pyproject.toml --group build -c requirements/dev.lock -o requirements/build.lock
	$(LOCK) pyproject.toml -c requirements/build.lock -o requirements/serving.lock
	$(LOCK) pyproject.toml -c requirements/serving.lock --no-emit-package onnxruntime --no-emit-package flatbuffers \
	  -o requirements/gpu.lock
	$(LOCK) --group image -c requirements/dev.lock -o requirements/image.lock
	$(LOCK) --group openapi -o requirements/openapi.lock
	$(LOCK) --group callers -o requirements/callers.lock
	$(LOCK) --group sdks $(LARGE:%=--no-emit-package %) -o requirements/sdks.lock
	$(LOCK) --group sdk3 $(LARGE:%=--no-emit-package %) -o requirements/sdk3.lock
LOCK := $(BIN)/uv pip compile -q --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
  --custom-compile-command 'make lock'
# Large packages that the SDKs import from .venv, as the tests do.
LARGE := boto3 botocore cryptography numpy pandas scipy

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache $(BUNDLED:%=model_repository/%/1) model_repository/bert/tokenizer
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(DEBIAN)
	$(PYTHON) -m venv .venv

.venv/.serving: requirements/build.lock $(wildcard backends/*.py backends/*/*.py) | $(BIN)/python
	@echo "installing what serves and builds models (about 410 MB) into .venv …"
	@UV_COMPILE_BYTECODE=1 scripts/install requirements/build.lock
	@$(BIN)/python -m backends.install .venv/triton/backends
	@touch $@

.venv/triton/%.so: backends/%.c | .venv/.serving
	@$(DEBIAN)
	@tcc -shared -fPIC -nostdlib -Wall -Werror -o $@ $<

.venv/.dev: requirements/dev.lock requirements/torch.txt .venv/.serving | $(SERVING)
	@echo "installing what tests and exports networks (torch among it) into .venv …"
	@scripts/install requirements/dev.lock
	@$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --no-compile --require-hashes -r requirements/torch.txt
	@touch $@

.venv/%/.installed: requirements/%.lock | .venv/.serving
	@scripts/install $< --upgrade --target $(@D)
	@touch $@

$(MODELS): model_repository/%/1/model.onnx: build_engines/families/%.py build_engines/onnx_writer.py | $(SERVING)
	@echo "building $* …"
	@$(BIN)/python -m build_engines build $* --for cpu --force
