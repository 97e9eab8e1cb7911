# make run: set everything up and serve on http://localhost:8080, to this machine only (HOST=0.0.0.0: to others too).
# make test: set up and run every test; make test FILE=tests/x: one file or folder. make check: lint and unit tests.
PYTHON ?= python3
PORT ?= 8080
HOST ?= $(or $(SERVE_HOST),127.0.0.1)
BIN := .venv/bin
DEBIAN := PYTHON=$(PYTHON) sh scripts/debian-packages
BUNDLED := bert efficientnet yolov4_tiny
MODELS := $(BUNDLED:%=model_repository/%/1/model.onnx)

# Keep bytecode whatever the shell says: torch and the tests take 10 s of each process that may not.
export PYTHONDONTWRITEBYTECODE =

.PHONY: run setup models dev test compiled packages check unit fuzz bench soak image release lint format lock clean

run: setup models
	@PORT=$(PORT) SERVE_HOST=$(HOST) SERVE_PAGE=$(or $(SERVE_PAGE),auto) SERVE_RELOAD=$(or $(SERVE_RELOAD),auto) \
	  exec $(BIN)/python serve

# What serves, and what a build loads its model with.
SERVING := .venv/.serving .venv/triton/stub_wait.so
setup: $(SERVING)

models: $(MODELS)

dev: .venv/.dev

# Four processes, each with whole files: most tests wait for servers to start and stop. With more threads, torch's would
# wait for each other and take twice the processor time.
test unit: export OMP_NUM_THREADS = 1
test: setup models
	@$(MAKE) --no-print-directory -j 2 --output-sync=target packages $(if $(FILE),dev,compiled lint)
	$(BIN)/python -m pytest $(or $(FILE:%=-n 0 %),-n 4 --dist loadfile --no-loadscope-reorder) $(PYTEST_ARGS)

# Compile what the tests import once, while mypy runs, and not in each of the four processes.
compiled: dev
	@$(BIN)/python -m pytest --collect-only >/dev/null

packages:
	@$(DEBIAN) podman runc mmdebstrap wrk ip:iproute2 chromium promtool:prometheus

# Lint, types and the tests that start no server and import no torch.
check: setup models dev
	@$(MAKE) --no-print-directory -j 2 --output-sync=target unit lint

unit:
	$(BIN)/python -m pytest -m unit -n 2 --dist loadfile $(PYTEST_ARGS)

# Give the parsers EXECUTIONS inputs in all, starting from tests/fuzz/seeds.py and tests/fuzz/corpus. FUZZ='image --keep'
# chooses targets, and keeps the inputs that reach new code. Then send a fiftieth as many requests to sequence models.
fuzz: setup dev
	@$(BIN)/python -m tests.fuzz $(FUZZ) --executions $(or $(EXECUTIONS),1000000)
	@FUZZ_CALLS=$$(($(or $(EXECUTIONS),1000000) / 50)) $(BIN)/python -m pytest -n 0 -q tests/fuzz/test_sequences.py

# Compare with the least that a front can cost, the network alone, Triton and two other servers (docs/benchmarks.md).
bench: setup models dev
	@$(DEBIAN) wrk
	@$(BIN)/python -m bench $(BENCH)

# Print whether memory or descriptors grow under an even load of MINUTES (docs/reliability.md).
soak: setup models dev
	@$(BIN)/python -m bench.soak --minutes $(or $(MINUTES),60)

# IMAGE, TAG and ENGINE (docker, podman or buildah) choose the name and the builder, TARGET=gpu the image for NVIDIA GPUs.
image:
	@$(PYTHON) scripts/image/build.py $(TARGET)

# VERSION=1.2.3: commit and tag it. The image's label, /models and the changelog then name it.
release:
	@$(PYTHON) scripts/release.py "$(VERSION)"

lint: dev
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/hadolint Dockerfile
	$(BIN)/mypy . serve

format: dev
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

# The lock files from the groups of pyproject.toml. Each takes the versions of the larger one before it.
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
# What the SDKs import from .venv, as the tests do.
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

DEVELOPMENT := dev.lock torch.txt openapi.lock callers.lock sdks.lock sdk3.lock
.venv/.dev: $(DEVELOPMENT:%=requirements/%) .venv/.serving | $(SERVING)
	@echo "installing what tests and exports networks (torch among it) into .venv …"
	@scripts/install requirements/dev.lock
	@$(BIN)/pip install --disable-pip-version-check --quiet --no-deps --no-compile --require-hashes -r requirements/torch.txt
	@scripts/install requirements/openapi.lock --upgrade --target .venv/openapi
	@scripts/install requirements/callers.lock --upgrade --target .venv/callers
	@scripts/install requirements/sdks.lock --upgrade --target .venv/sdks
	@scripts/install requirements/sdk3.lock --upgrade --target .venv/sdk3
	@touch $@
	@echo "installed"

$(MODELS): model_repository/%/1/model.onnx: build_engines/families/%.py build_engines/onnx_writer.py | $(SERVING)
	@echo "building $* …"
	@$(BIN)/python -m build_engines build $* --for cpu --force
