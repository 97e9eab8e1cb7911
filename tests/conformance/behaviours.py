"""Defines a row of the table: a request that is sent to both servers, and the parts of their
answers that are compared."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.conformance import wire
from tests.conformance.wire import Answer, Headers

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
COME_BACK = "they come back, as SageMaker asks of a container; native loses them"
BINARY = "application/vnd.sagemaker-triton.binary+json"
SHOWN = 320
REQUEST_ID = re.compile(r'("request_id": ?")[^"]*')
See = Callable[[Answer], str]
SAME, IMPROVEMENT, BUG = "same", "improvement", "BUG"


@dataclass(frozen=True)
class Side:
    """One of the two servers: its port, a function that restarts it, and the path of an invocation.
    In multi-model mode, it also has the folder of archives, the prefix of their names in this run,
    and a folder outside."""

    port: int
    revive: Callable[[], None] = lambda: None
    path: str = "/invocations"
    archives: Path = Path("/opt/ml/models")
    token: str = ""
    elsewhere: Path = Path()

    def archive(self, name: str) -> Path:
        return self.archives / f"{self.token}.{name}" / "model"


Ask = Callable[[Side], str]


@dataclass(frozen=True)
class Row:
    """A row of the table. `improvement` says why this project's answer differs. Without it, both
    answers must be the same."""

    section: str
    title: str
    ask: Ask
    improvement: str = ""


def rows(section: str, *entries: tuple[str, Ask] | tuple[str, Ask, str]) -> list[Row]:
    """Make rows of one section from titles, requests and improvements."""
    return [Row(section, *each) for each in entries]


@dataclass(frozen=True)
class Observed:
    behaviour: Row
    native: str
    ours: str

    @property
    def verdict(self) -> str:
        if self.native == self.ours:
            return BUG if self.behaviour.improvement else SAME
        return IMPROVEMENT if self.behaviour.improvement else BUG


def shown(answer: Answer) -> str:
    """Return an answer in the form in which it is compared and shown. For an error, that is the
    status and whether it has a text."""
    if answer.status == 0:
        return "hangs up"
    interim = f"{answer.interim}, then " if answer.interim else ""
    if not answer.body:
        return f"{interim}{answer.status}, no body"
    if answer.status >= 400:
        return f"{interim}{answer.status} {_error(answer.body)}"
    return f"{interim}{answer.status} {_short(answer.content_type)} {body_text(answer)}"


def body_text(answer: Answer) -> str:
    """Return JSON with its parameters sorted by name, followed by any binary data in
    hexadecimal."""
    size = re.search(r"json-header-size=(\d+)", answer.content_type)
    length = int(size[1]) if size else len(answer.body)
    binary = answer.body[length:]
    text = _with_ordered_parameters(answer.body[:length].decode("utf-8", "replace"))
    return _cut(text) + (f" + {len(binary)} bytes {_cut(binary.hex())}" if size else "")


def _with_ordered_parameters(text: str) -> str:
    """Sort the parameters, whose order gRPC does not preserve, and write 1e300 as 1e+300."""
    try:
        document = json.loads(text)
    except ValueError:
        return text
    if isinstance(document, dict) and isinstance(document.get("parameters"), dict):
        document["parameters"] = dict(sorted(document["parameters"].items()))
    return compact(document).decode()


def _cut(text: str) -> str:
    text = REQUEST_ID.sub(r"\1…", text.replace("\n", "⏎"))
    return text if len(text) <= SHOWN else f"{text[:80]}… ({len(text)} characters)"


def _short(content_type: str) -> str:
    return content_type.replace("application/vnd.sagemaker-triton.", "…")


def _error(body: bytes) -> str:
    try:
        message = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return "something else than an error in JSON"
    return '{"error"}' if isinstance(message, str) and message else "an empty error"


def get(path: str, method: str = "GET", see: See = shown) -> Ask:
    return lambda side: see(wire.send(side.port, method, path))


def post(
    body: object, headers: Headers | None = None, see: See = shown, method: str = "POST"
) -> Ask:
    """Return an invocation. A body that is neither bytes nor a string is sent as JSON."""
    data = (
        body
        if isinstance(body, bytes)
        else body.encode()
        if isinstance(body, str)
        else compact(body)
    )
    sent = {"Content-Type": "application/json", **(headers or {})}
    return lambda side: see(wire.send(side.port, method, side.path, sent, data))


def binary(
    header: object, blob: bytes, content_type: str = f"{BINARY};json-header-size=LENGTH"
) -> Ask:
    """Return an invocation with binary tensors after the JSON. LENGTH stands for the JSON's
    length."""
    data = compact(header) if header is not None else b""
    return post(data + blob, {"Content-Type": content_type.replace("LENGTH", str(len(data)))})


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def tensor(
    name: str, datatype: str, shape: list[int], data: object = None, **parameters: object
) -> dict[str, object]:
    """Return a KServe v2 input with these parameters."""
    value: dict[str, object] = {"name": name, "shape": shape, "datatype": datatype}
    if data is not None:
        value["data"] = data
    return value | ({"parameters": parameters} if parameters else {})
