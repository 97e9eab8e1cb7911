"""Tests the recognition of out-of-memory messages, the admission check, and the measurement on
which it is based."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from serving.host.processes import memory_used_by, process_tree
from serving.model_lifecycle.on_post import shortfall
from serving.triton.connection import is_out_of_memory
from tests.conformance.multi import OUT_OF_MEMORY as NATIVES

pytestmark = pytest.mark.unit

MEGABYTE = 2**20
TEXTS = (  # tests/conformance provokes those of them that native Triton knows too with a real model
    *NATIVES,
    "Internal: MemoryError: Unable to allocate 9 GiB",
    "torch.OutOfMemoryError: x",
    "OOM when allocating tensor with shape[8,3]",
    "OSError: [Errno 12] Cannot allocate memory",
    "std::bad_alloc",
    "RESOURCE_EXHAUSTED: x",
    "Failed to increase the shared memory pool size for key 'x' to 9 bytes",
)


@pytest.mark.parametrize("text", TEXTS)
def test_recognize_every_out_of_memory_message(text: str) -> None:
    assert is_out_of_memory(
        f"load failed for model 'm': version 1 is at UNAVAILABLE state: Internal: {text};"
    )


@pytest.mark.parametrize(
    "text", ["load failed for model 'BLOOM-7b.tar.gz'", "ROOM_3 is not found", "expected FP32"]
)
def test_take_no_other_message_for_out_of_memory(text: str) -> None:
    assert not is_out_of_memory(text)


def test_admit_models_up_to_the_memory_limit() -> None:
    limit = 100 * MEGABYTE
    assert shortfall(limit, 60 * MEGABYTE, 40 * MEGABYTE) == ""
    reason = shortfall(limit, 60 * MEGABYTE, 41 * MEGABYTE)
    assert all(word in reason for word in ("41 MB", "60 MB", "100 MB", "SERVE_MODEL_MEMORY_SHARE"))


CHILD = "import sys; held = bytearray(b'x') * (64 * 2**20); print(1, flush=True); sys.stdin.read()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


@pytest.fixture
def parent() -> Iterator[int]:
    """Start a process whose child holds 64 MB."""
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout and process.stdin
    process.stdout.readline()
    yield process.pid
    process.stdin.close()
    process.wait()


def test_add_the_memory_of_all_descendants(parent: int) -> None:
    assert len(list(process_tree(parent))) == 2
    assert 64 * MEGABYTE < memory_used_by(parent) < 100 * MEGABYTE


def test_count_no_memory_of_a_process_that_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert memory_used_by(process.pid) == 0
