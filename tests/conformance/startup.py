"""Rows 4, 8 and 9 of CONTRACT section 3: mistakes that stop a start. The rules of native Triton are
in a shell script of its image (docker/sagemaker/serve), not in tritonserver. The answers listed for
it are the ones that this script gives."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.conformance.behaviours import Ask, Row, Side
from tests.conformance.models import make_broken, make_talker
from tests.support.harness import Server, wait_until

SCRIPT = Side(0)
STOPS = "does not start, and says why"
MANY = "without a name all of them are served by theirs"
Fill = Callable[[Path], None]


def start(fill: Fill, native: str, words: tuple[str, ...], **variables: str) -> Ask:
    """Start this project's server with a repository. If it stops, the end of its output must
    contain `words`."""

    def asked(side: Side) -> str:
        if side is SCRIPT:
            return native
        with tempfile.TemporaryDirectory(prefix="start-") as name:
            return _observe(Path(name), fill, words, variables)

    return asked


def _observe(folder: Path, fill: Fill, words: tuple[str, ...], variables: dict[str, str]) -> str:
    (folder / "models").mkdir()
    fill(folder / "models")
    server = Server(folder, folder / "models", **({"SERVE_WORKERS": "1"} | variables))
    try:
        wait_until(
            lambda: server.process.poll() is not None or server.ping() == 200, "it starts or stops"
        )
        return _describe(server, words)
    finally:
        server.stop()


def _describe(server: Server, words: tuple[str, ...]) -> str:
    output = server.output()
    missing = [word for word in words if word not in output]
    if server.process.poll() is None:
        served = server.get("/models").json()["models"]
        names = [m["name"] for m in served if any(v["state"] == "READY" for v in m["versions"])]
        warns = _unless(missing, ", and warns") if words else ""
        return f"starts{warns}; loaded: {', '.join(names)}"
    return f"does not start{_unless(missing, ', and says why')}"


def _unless(missing: list[str], text: str) -> str:
    return f", without a word of {', '.join(missing)}" if missing else text


def _nothing(folder: Path) -> None:
    """Make an empty repository."""


def _one(folder: Path) -> None:
    make_talker(folder / "one")


def _two(folder: Path) -> None:
    make_talker(folder / "one")
    make_talker(folder / "two")


def _broken(folder: Path) -> None:
    make_broken(folder / "one", "these words")


DEFAULT = "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"
KIND = "SAGEMAKER_TRITON_INFERENCE_TYPE"
WARNS = "starts, and warns; loaded: one"
ROWS = [
    Row("8", "config.pbtxt at the repository's root", start(make_talker, STOPS, ("config.pbtxt",))),
    Row(
        "8",
        "A default model without a folder",
        start(_one, STOPS, ("absent",), **{DEFAULT: "absent"}),
    ),
    Row("8", "No model", start(_nothing, STOPS, ("model",))),
    Row("8", "One model and no name", start(_one, WARNS, ("warning", "one"))),
    Row("8", "Two models and no name", start(_two, STOPS, ()), MANY),
    Row(
        "8",
        "Two models and a name: only that is loaded",
        start(_two, "starts; loaded: one", (), **{DEFAULT: "one"}),
    ),
    Row(
        "8",
        "A default model that cannot be loaded",
        start(_broken, STOPS, ("these words",), **{DEFAULT: "one"}),
    ),
]
VARIABLES = [
    Row(
        "4",
        "SAGEMAKER_TRITON_INFERENCE_TYPE=guess",
        start(_one, STOPS, (KIND, "guess"), **{KIND: "guess"}),
    ),
    Row(
        "8",
        "A port outside of SAGEMAKER_SAFE_PORT_RANGE",
        start(
            _one,
            "starts; loaded: one",
            ("SAGEMAKER_SAFE_PORT_RANGE",),
            SAGEMAKER_SAFE_PORT_RANGE="1000-1010",
            SAGEMAKER_TRITON_ALLOW_METRICS="true",
            SAGEMAKER_TRITON_METRICS_PORT="8002",
        ),
        "it does not start: nothing listens outside of the range",
    ),
]
