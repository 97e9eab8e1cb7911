"""Rejects configurations that would make tritonserver crash or hang, exhaust the machine's
resources, or read files that it must not read. Every model is checked before it is staged
(repository/staging.py), wherever it comes from."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving.errors import ConfigError
from serving.host.machine import memory_limit
from serving.repository.layout import CONFIG, FILES, versions
from serving.repository.model_config import backend_of, parameter_of
from serving.repository.packages import MODEL, PACKAGES, packages_of
from serving.repository.paths import named_file, real_path
from serving.repository.unpacking import size_of
from serving.settings.settings import Settings

# Bytes of memory that an instance takes besides its weights. A plain Python stub takes 17 MB, a
# stub with NumPy and ONNX Runtime takes 30 MB, and each instance takes 1 MB of shared memory.
PER_INSTANCE = 32 * 1024 * 1024
# Bytes of memory for each byte of the model's files, because weights are read and then packed for
# the processor. A ResNet-50 of 102 MB takes 2 to 4 times its size.
PER_BYTE_OF_FILES = 2
SHARING = "pytorch"  # the backend whose instances share one copy of the weights
MOST_INSTANCES = 256  # instances of one model; few machines have as many processors
MOST_THREADS = 1024  # threads of one instance
MOST_ROWS = 2**20  # rows of a batch, or candidate sequences; Triton may allocate a slot for each
MOST_LEVELS = 1000  # priority levels; Triton allocates a queue for each
MOST_ELEMENTS = 2**31 - 1  # elements in a row of a tensor; a gRPC message has at most 2 GB
MOST_WARMUP = 2**27  # elements in a warm-up tensor, which Triton allocates
MOST_RUNS = 10_000  # repetitions of a warm-up
THREADS = {
    "intra_op_thread_count",
    "inter_op_thread_count",
    "INTRA_OP_THREAD_COUNT",
    "INTER_OP_THREAD_COUNT",
    "INFERENCE_NUM_THREADS",
}
EXTENSION = "CPU_EXTENSION_PATH"  # OpenVINO's parameter that names a library
# Matches names of models, instance groups and files with which Triton's Python backend can start a
# stub. The pattern is strict, because the backend starts the stub through a shell.
STARTABLE = re.compile(r"[A-Za-z0-9._-]{1,255}")
# matches valid names from which Triton derives the file name of a library, and "" for no name
_LIBRARY = re.compile(r"(?!\.)[A-Za-z0-9._-]*")


def check(folder: Path, config: Any, settings: Settings, root: Path | None) -> None:
    """Raise ConfigError if the model must not be loaded. If `root` is given, the paths that
    config.pbtxt names must be inside that folder after links are resolved."""
    _check_versions(folder, config)
    for what, name in _libraries(config):
        if not _LIBRARY.fullmatch(name):
            raise ConfigError(f"{what} '{name}'", "is not a name", "letters, digits, '.', '_', '-'")
    for what, number, most in _numbers(config):
        if number > most:
            raise ConfigError(f"{what} {number}", f"is too large: it may be {most} at most")
    for group in config.instance_group:
        if group.name:
            check_startable("instance_group", group.name)
    _check_files(folder, config, root)
    _check_instances(folder, config, settings)


def check_startable(source: str, name: str, remedy: str = "") -> None:
    """Raise ConfigError unless STARTABLE matches this name of a model, an instance group or a file,
    which Triton's Python backend passes to a shell. The message says that it is from `source`."""
    if not STARTABLE.fullmatch(name):
        problem = "is not a name with which Triton's Python backend can start a model"
        raise ConfigError(f"{source} '{name[:99]}'", problem, remedy)


def loaded_versions(model: Path, config: Any) -> list[Path]:
    """Return the folders of the versions that Triton loads; by default, only the latest."""
    numbered = versions(model)
    policy = config.version_policy
    if policy.HasField("all"):
        return numbered
    if policy.HasField("specific"):
        wanted = set(policy.specific.versions)
        return [version for version in numbered if int(version.name) in wanted]
    return numbered[-max(1, policy.latest.num_versions) :]


def instances_of(model: Path, config: Any) -> int:
    """Return how many instances Triton starts for all versions of the model together. A group's
    count applies to each of its GPUs, and 0 means 1."""
    counts = [max(1, group.count) * max(1, len(group.gpus)) for group in config.instance_group]
    instances_per_version = sum(counts) or 1
    return instances_per_version * max(1, len(loaded_versions(model, config)))


def memory_of(model: Path, config: Any) -> int:
    """Estimate how many bytes of memory the loaded model takes."""
    numbered = versions(model)
    loaded = loaded_versions(model, config)
    others = [entry for entry in model.iterdir() if entry not in numbered]
    weights = sum(map(size_of, [*loaded, *others]))
    instances = instances_of(model, config)
    # without sharing, each instance of a version has its own copy of the version's weights
    copies = 1 if backend_of(config) == SHARING else instances // max(1, len(loaded))
    return instances * PER_INSTANCE + PER_BYTE_OF_FILES * copies * weights


def _check_instances(folder: Path, config: Any, settings: Settings) -> None:
    """Raise ConfigError if the model has more instances than any model may have, or more than this
    machine has memory for. A single instance is always accepted."""
    count = instances_of(folder, config)
    if count == 1:
        return
    remedy = "lower count in instance_group, or load fewer versions"
    if count > MOST_INSTANCES:
        problem = f"asks for {count} instances; a model may have {MOST_INSTANCES} at most"
        raise ConfigError(folder / CONFIG, problem, remedy)
    if settings.device == "gpu":
        needed = count * PER_INSTANCE  # the weights may be in GPU memory
    else:
        needed = memory_of(folder, config)
    limit = memory_limit()
    if needed > limit:
        problem = (
            f"asks for {count} instances, which take about {needed / 2**20:.0f} MB; this machine "
            f"has {limit / 2**20:.0f} MB"
        )
        raise ConfigError(folder / CONFIG, problem, remedy)


def _check_versions(folder: Path, config: Any) -> None:
    """Raise ConfigError if a version's number is too large for Triton or, for a Python model, if
    the name of its file is invalid or the file is missing from a version that Triton loads."""
    numbered = versions(folder)
    if numbered and int(numbered[-1].name) >= 2**63:  # the last one has the largest number
        problem = "is not a version that Triton can read: it must be below 2^63"
        raise ConfigError(numbered[-1], problem)
    if backend_of(config) != "python":
        return
    file = config.default_model_filename or FILES["python"]
    for part in file.split("/"):
        check_startable("default_model_filename", part, "model.py")
    for version in loaded_versions(folder, config):
        if not (version / file).is_file():
            raise ConfigError(version, f"has no {file}")


def _libraries(config: Any) -> Iterator[tuple[str, str]]:
    """Yield (field, name) for each name from which Triton derives the file name of a library."""
    yield "backend", config.backend
    yield "platform", config.platform
    yield "runtime", config.runtime
    for agent in config.model_repository_agents.agents:
        yield "model_repository_agents", agent.name


def _numbers(config: Any) -> Iterator[tuple[str, int, int]]:
    """Yield (name, number, maximum) for numbers in the configuration that determine how much memory
    Triton allocates, how many threads it starts, or how often it repeats work."""
    sequences = config.sequence_batching
    yield "max_batch_size", config.max_batch_size, MOST_ROWS
    yield "priority_levels", config.dynamic_batching.priority_levels, MOST_LEVELS
    yield "max_candidate_sequences", sequences.oldest.max_candidate_sequences, MOST_ROWS
    for tensor in (*config.input, *config.output, *sequences.state):
        # only a state has an input_name
        name = getattr(tensor, "name", "") or getattr(tensor, "input_name", "")
        yield f"the size of a row of '{name}',", _elements(tensor.dims), MOST_ELEMENTS
    for warmup in config.model_warmup:
        yield f"model_warmup '{warmup.name}': count", warmup.count, MOST_RUNS
        for name, tensor in warmup.inputs.items():
            size = max(1, warmup.batch_size) * _elements(tensor.dims)
            yield f"model_warmup '{warmup.name}': the size of '{name}',", size, MOST_WARMUP
    for name in THREADS & config.parameters.keys():
        # a backend may accept signs, spaces and other characters around the digits
        digits = "".join(filter(str.isdecimal, config.parameters[name].string_value))
        if digits:
            # the first 20 digits are enough, and int() refuses more than 4,300
            yield f"parameter '{name}'", int(digits[:20]), MOST_THREADS


def _elements(dims: Any) -> int:
    """Return how many elements a tensor has at least. A variable dimension, -1, counts as 1."""
    return math.prod(max(1, size) for size in dims)


def _check_files(folder: Path, config: Any, root: Path | None) -> None:
    """Raise ConfigError if a path in config.pbtxt is outside the model's folder (libraries and
    packages may be), resolves to a place outside `root` (None: any place is allowed), or leads to a
    FIFO, a socket or a device. Paths need not exist. The client checks the files that its
    parameters name (clients/base.py)."""
    for output in config.output:
        named_file(folder, output.label_filename, root)
    for warmup in config.model_warmup:
        for tensor in warmup.inputs.values():
            named_file(folder, tensor.input_data_file, root, "warmup")
    for version in loaded_versions(folder, config):
        for name in (config.default_model_filename, *config.cc_model_filenames.values()):
            named_file(folder, name, root, version.name)
    libraries = [folder / name for name in config.model_operations.op_library_filename]
    if EXTENSION in config.parameters:
        setting = parameter_of(config, EXTENSION)
        libraries.append(folder / setting.replace(MODEL, str(folder)))
    if PACKAGES in config.parameters:
        libraries.append(packages_of(folder, config))
    for path in libraries:
        real_path(path, root)
