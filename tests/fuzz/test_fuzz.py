"""Tests that every parser accepts or refuses its input: the corpus and 1,000 new inputs for each
parser, and mutated bodies of the corpus sent to the real server. `make fuzz` tries more inputs for
the parsers."""

import re
import subprocess
import sys

import psutil
import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.__main__ import TARGETS
from tests.fuzz.targets import TARGETS as FUNCTIONS
from tests.fuzz.targets import corpus
from tests.support.harness import ROOT, Server

pytestmark = pytest.mark.full

EXECUTIONS = 1000  # number of new inputs for each target
REQUESTS = 300
MEMORY = 2**30  # maximum bytes of a gunicorn worker: its own memory and the largest image
FAILURES = {503, 504, 507}  # statuses that mean that the server is busy, late or full
PATHS = ("/invocations", *(f"/v2/models/{name}/infer" for name in ("scale", "identity", "nobody")))
MODELS = ("resnet", "yolov5", "bert", "scale", "identity", "")
JSON = "application/json"


def test_have_a_fuzzing_function_for_each_target_of_the_command() -> None:
    assert list(TARGETS) == sorted(FUNCTIONS)


@pytest.fixture(scope="module")
def fuzzed() -> str:
    """Return the command's output for all targets. Each target starts from its corpus. All targets
    share one run, because instrumenting the code takes seconds."""
    command = [sys.executable, "-m", "tests.fuzz", "--executions", str(EXECUTIONS * len(TARGETS))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == int("failed: " in done.stdout), done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_answer_or_refuse_the_corpus_and_new_inputs(target: str, fuzzed: str) -> None:
    assert f"{target}: failed" not in fuzzed, fuzzed
    match = re.search(rf"^{target}: (\d+) inputs", fuzzed, re.MULTILINE)
    assert match, fuzzed
    assert int(match[1]) >= EXECUTIONS  # libFuzzer may count a few files of the corpus twice


def _with_type(target: str, data: bytes) -> tuple[dict[str, str], bytes]:
    """Return the headers and the body of a request that carries this input."""
    first, _, rest = data.partition(b"\n")
    word = "".join(chr(byte) for byte in first if 32 <= byte < 127)[:1000]
    if target == "image":
        return {"Content-Type": "image/png"}, data
    if target == "form":
        return {"Content-Type": "multipart/form-data; boundary=b"}, data.split(b"\n", 3)[-1]
    if target == "packed":
        return {"Content-Type": JSON, "Content-Encoding": word}, rest
    if target == "binary":
        return {
            "Inference-Header-Content-Length": word,
            "Content-Type": "application/octet-stream",
        }, rest
    return {"Content-Type": word}, rest


TYPED = ("body", "binary", "form", "image", "packed")
SEEDS = [_with_type(target, data) for target in TYPED for data in corpus(target).values()]
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1), st.sampled_from(["set", "cut", "double", "insert"]), st.binary(max_size=8)
    )
)


def changed(data: bytes, edits: list[tuple[float, str, bytes]]) -> bytes:
    for position, kind, new in edits:
        at = int(position * len(data))
        if kind == "set":
            data = data[:at] + new + data[at + len(new) :]
        elif kind == "insert":
            data = data[:at] + new + data[at:]
        elif kind == "double":
            data = (data[:at] + data[at // 2 :])[: 2**16]
        else:
            data = data[:at]
    return data


@settings(
    max_examples=REQUESTS,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    seed=st.sampled_from(SEEDS),
    edits=EDITS,
    path=st.sampled_from(PATHS),
    model=st.sampled_from(MODELS),
    attributes=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30),
)
def one_request(
    server: Server,
    seed: tuple[dict[str, str], bytes],
    edits: list[tuple[float, str, bytes]],
    path: str,
    model: str,
    attributes: str,
) -> None:
    headers, body = seed
    sent = {**headers, "X-Amzn-SageMaker-Custom-Attributes": attributes.strip()}
    data = changed(body, edits)
    named = {"model_name": model} if path == "/invocations" else {}
    try:
        reply = server.post(path, params=named, data=data, headers=sent)
    except requests.RequestException as err:
        raise AssertionError(f"{path} {named} {sent} {data.hex()}: {err}") from err
    what = f"{path} {named} {sent} {data.hex()}: {reply.status_code} {reply.text[:500]}"
    assert reply.status_code < 500 or reply.status_code in FAILURES, what
    if reply.status_code >= 400:
        assert set(reply.json()) == {"error", "code", "request_id"}, what


def test_keep_answering_while_bodies_are_mutated(server: Server) -> None:
    pids = server.pid("tritonserver"), server.pid("gunicorn")
    workers = psutil.Process(server.pid("gunicorn")).children()
    one_request(server)
    assert (server.pid("tritonserver"), server.pid("gunicorn")) == pids
    assert psutil.Process(server.pid("gunicorn")).children() == workers
    assert max(worker.memory_info().rss for worker in workers) < MEMORY
    assert (
        server.post(params={"model_name": "bert"}, json={"instances": ["hello"]}).status_code == 200
    )
