"""Defines the targets of fuzzing: each is a parser of this project, as a function of bytes. It may
raise a ServingError that blames the caller, and nothing else. In an input, the other parts of a
request come before its body, one per line. A stand-in for Triton returns its inputs."""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import flask

from clients.base import Model, ModelClient, TensorSpec
from serving.bodies.decoder import Decoder
from serving.bodies.documents import read_binary
from serving.bodies.hugging_face import FORMATS
from serving.bodies.npy import read_npy
from serving.bodies.packed import unpacked
from serving.bodies.reading import Body, read_attributes, read_body
from serving.budget import NEVER, Deadline
from serving.codecs import ENCODED_IMAGE, IMAGE, ROW, Limits
from serving.errors import ConfigError, InvalidRequest, ServingError
from serving.front.incoming import Incoming, incoming
from serving.front.other_apis import BODIES
from serving.front.parsing import read_invocation, read_request
from serving.front.services import Services
from serving.job import Step
from serving.model_lifecycle.on_post import estimate, triton_name
from serving.model_status.served_model import ServedModel, describe_model
from serving.repository.completion import is_complete
from serving.repository.locate_archive import locate
from serving.repository.model_config import backend_of, parse_config, parts_of
from serving.request import Request, Target
from serving.sessions import LONGEST_ID, SEQUENCE_ID, SEQUENCE_PARAMETERS, Sequencing, Session
from serving.settings.settings import Settings
from serving.triton.tensors import InferRequest, Tensor
from tests.bodies.echo import Echo, Ones
from tests.fuzz import parameters as made
from tests.fuzz.seeds import SEEDS

CORPUS = Path(__file__).parent / "corpus"
LIMITS = Limits(max_image_pixels=250_000)  # 2 MB
REDUCED = Limits(max_image_pixels=250_000, side=5)  # 5 of 8 rows of a JPEG are decoded
MOST_BYTES = 2**20  # maximum size of a decompressed body
REFUSALS = {400, 403, 404, 405, 406, 409, 410, 413, 415}
TEXT = "latin-1"  # the encoding of headers


class Checked(Echo):
    """A stand-in for Triton that also creates the message that would be sent to Triton."""

    def infer(self, request: InferRequest, deadline: Deadline = NEVER) -> Any:
        request.message({}).SerializeToString()
        for tensor in request.inputs:
            _count(tensor)
        return super().infer(request, deadline)

    def stream(self, request: InferRequest, deadline: Deadline = NEVER) -> Any:
        request.message({}).SerializeToString()
        raise InvalidRequest("no stream here")


def _count(tensor: Tensor) -> None:
    """Refuse strings that do not fill the shape, as Triton does."""
    try:
        tensor.array()
    except Exception as err:
        if tensor.datatype == "BYTES":
            raise InvalidRequest("the strings do not fill the shape") from err
        raise


class Pictures(Ones):
    codec = IMAGE


def _served(client: type[ModelClient] | None, *inputs: TensorSpec, batch: int = 0) -> ServedModel:
    model = Model("m", Path("m"), inputs, inputs, batch)
    return ServedModel(model, client(model) if client else None)


X = TensorSpec("x", "FP32", (-1,))
MODELS = (
    _served(Ones, TensorSpec("x", "FP32", (1,)), batch=4),
    _served(Pictures, TensorSpec("x", "FP32", (1,)), batch=4),
    _served(None, X),
    _served(None, TensorSpec("x", "BYTES", (-1,)), batch=8),
    _served(None, X, TensorSpec("y", "INT64", (2,), optional=True)),
)
GATEWAY, DECODER = Checked(), Decoder(LIMITS)
APP = flask.Flask("fuzz")
APP.request_class = Incoming
APP.config["MAX_CONTENT_LENGTH"] = MOST_BYTES
APP.extensions["serving"] = Services(Settings.from_env({}), "")


def answer(body: Body, request: Request | None = None) -> None:
    """Answer a body with a model of every kind, because one may accept what another refuses."""
    body.named  # noqa: B018
    for served in MODELS:
        try:
            body.bind(served, request or Request("id", decoder=DECODER)).answer(GATEWAY)
        except ServingError as err:
            check(err)


def check(error: ServingError) -> None:
    """Assert that the refusal gives a reason that can be written as JSON."""
    if error.status not in REFUSALS:
        raise AssertionError(f"{type(error).__name__} is {error.status}") from error
    str(error).encode()


def body(data: bytes) -> None:
    kind, _, content = data.partition(b"\n")
    for generates, accept in ((False, ""), (True, "application/jsonlines")):
        request = Request("id", decoder=DECODER, accept=accept)
        answer(read_body(kind.decode(TEXT), content, generates), request)


class Anything(Ones):
    """A client for any task, which accepts any parameter."""

    def read_parameters(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return dict(values)

    def postprocess(self, outputs: Any, inputs: Any, instances: Any, parameters: Any) -> list[Any]:
        entry = {name: 0 for form in FORMATS.values() for name in form.fields.values()}
        prediction: dict[str, Any] = {form.key: [entry] for form in FORMATS.values()}
        prediction["ranking"] = [{"index": 0, "score": 0.5, "document": "a"}]
        return [prediction | {"embedding": row} for row in outputs["x"]]


def api(data: bytes) -> None:
    """Read a route of another server's API, and its body."""
    route, _, content = data.partition(b"\n")
    path = route.decode(TEXT)
    paths = list(BODIES)
    kind = BODIES[path if path in BODIES else paths[len(route) % len(paths)]]
    body = kind.of(content)
    body.named  # noqa: B018
    for task in kind.tasks:
        client = type("Client", (Anything,), {"task": task})
        served = _served(client, TensorSpec("x", "FP32", (1,)), batch=4)
        body.bind(served, Request("id", decoder=DECODER)).answer(GATEWAY)


class Rows(Ones):
    """A client for rows of two cells."""

    codec = ROW
    absent = ("0", "")


def bare(data: bytes) -> None:
    """Read JSON without this project's keys, and rows in LibSVM's format."""
    rows = _served(Rows, TensorSpec("x", "FP32", (1,)), batch=4)
    for kind in ("application/json", "text/libsvm"):
        try:
            body = read_body(kind, data)
            answer(body)
            body.bind(rows, Request("id", decoder=DECODER)).answer(GATEWAY)
        except ServingError as err:
            check(err)


def binary(data: bytes) -> None:
    length, _, content = data.partition(b"\n")
    answer(read_binary(length.decode(TEXT), "the header", content, is_kserve=True))


def packed(data: bytes) -> None:
    encoding, _, content = data.partition(b"\n")
    if len(unpacked(content, encoding.decode(TEXT), MOST_BYTES)) > max(MOST_BYTES, len(content)):
        raise AssertionError("unpacked beyond the limit")


def npy(data: bytes) -> None:
    read_npy(data)


def image(data: bytes) -> None:
    for limits in (LIMITS, REDUCED):
        decoded = IMAGE.from_bytes(data, limits)
        if decoded.mode != "RGB" or decoded.width * decoded.height > LIMITS.max_image_pixels:
            raise AssertionError(f"{decoded.mode} {decoded.size}")
    ENCODED_IMAGE.from_bytes(data, LIMITS)


def headers(data: bytes) -> None:
    """Read Custom-Attributes, Session-Id and the names of models."""
    attributes, _, session = data.decode(TEXT).partition("\n")
    pairs = read_attributes(attributes)
    Target.within("the header", pairs)
    triton_name(session)
    for datatype in ("UINT64", "INT32", "BYTES"):
        sequencing = Sequencing(frozenset({datatype}), 1.0)
        if parsed := Session.of(sequencing, session, [pairs]):
            parsed.parameters()


def parameters(data: bytes) -> None:
    """Read `parameters` as JSON, for a kind of model and of body that the input also chooses. If
    the input is anything else, derive them from it."""
    kind, _, content = data.partition(b"\n")
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        content = made.text(made.parameters(Random(data)))
    choice = len(kind)
    served = SEQUENTIAL[choice % len(SEQUENTIAL)]
    template = TEMPLATES[choice // len(SEQUENTIAL) % len(TEMPLATES)]
    job = read_body("application/json", template % content, True).bind(served, Request("id"))
    step: Step | None = None
    while step is None or not step.is_last:
        step = job.prepare(step)
        request = InferRequest("m", "", tuple(step.inputs), parameters=step.parameters)
        check_sequence(served, request.message({}).parameters)


def check_sequence(served: ServedModel, sent: Mapping[str, Any]) -> None:
    """Raise AssertionError if the id or a flag in Triton's message does not fit the model."""
    for name in SEQUENCE_PARAMETERS & set(sent):
        kind = sent[name].WhichOneof("parameter_choice")
        value = getattr(sent[name], kind)
        sequencing = served.sequencing
        if sequencing is None:
            raise AssertionError(f"a model without sequences gets {name}")
        if name != SEQUENCE_ID:
            fits = kind == "bool_param"
        elif kind == "int64_param":
            fits = all(value in HELD[id_type] for id_type in sequencing.id_types)
        else:
            fits = kind == "string_param" and sequencing.id_types <= {"BYTES"}
            length = len(value.encode())
            fits = fits and length <= LONGEST_ID and "\0" not in value
            fits = fits and (length == LONGEST_ID or not sequencing.id_types)
        if not fits:
            raise AssertionError(f"{sequencing.id_types} get {name} {value!r}")


# the numbers that fit into CORRID's datatype
HELD = {
    "UINT64": range(2**64),
    "INT64": range(-(2**63), 2**63),
    "UINT32": range(2**32),
    "INT32": range(-(2**31), 2**31),
    "BYTES": range(0),
}
TEMPLATES = (
    b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"parameters":%b}',
    b'{"x":[1],"parameters":%b}',
)
SEQUENTIAL = (
    _served(None, X),
    *(
        replace(_served(None, X), sequencing=Sequencing(frozenset(id_types), 1.0))
        for id_types in ((), *((name,) for name in HELD), ("INT32", "UINT64"), ("BYTES", "INT32"))
    ),
)


def form(data: bytes) -> None:
    """Read Target-Model, query string, Content-Type and a form, as Flask does."""
    target, query, kind, content = [*data.split(b"\n", 3), b"", b"", b""][:4]
    sent = {"X-Amzn-SageMaker-Target-Model": target.decode(TEXT).replace("\r", "")}
    with APP.test_request_context(
        "/invocations",
        method="POST",
        query_string=query.decode(TEXT),
        content_type=kind.decode(TEXT).replace("\r", "") or "multipart/form-data; boundary=b",
        headers=sent,
        data=content,
    ):
        source = incoming()
        body = read_invocation(source)
        named = Target("the header", source.header("X-Amzn-SageMaker-Target-Model") or None)
        answer(body, read_request(source, body, named))


def config(data: bytes) -> None:
    parsed = parse_config(data.decode("utf-8", "replace"))
    backend_of(parsed)
    parts_of(parsed)
    is_complete(Path("/nowhere"), parsed)
    describe_model("m", Path("m"), parsed)


def archive(data: bytes) -> None:
    """Read a url, and the config.pbtxt of two folders of an archive, separated by an empty line."""
    url, _, rest = data.partition(b"\n")
    for folder, content in zip(("a", "b"), rest.split(b"\n\n", 1), strict=False):
        model = _root() / "1" / "model" / folder
        model.mkdir(parents=True, exist_ok=True)
        (model / "config.pbtxt").write_bytes(content)
    estimate(locate(str(_root()) + url.decode(TEXT), _root()), "cpu")


def _root() -> Path:
    global _folder
    _folder = _folder or tempfile.TemporaryDirectory()
    return Path(_folder.name)


_folder: "tempfile.TemporaryDirectory[str] | None" = None

FUNCTIONS = (
    api,
    archive,
    bare,
    binary,
    body,
    config,
    form,
    headers,
    image,
    npy,
    packed,
    parameters,
)
TARGETS: dict[str, Callable[[bytes], None]] = {each.__name__: each for each in FUNCTIONS}


def run(target: str, data: bytes) -> None:
    """Run the target. Raise every exception except refusals."""
    try:
        TARGETS[target](data)
    except ConfigError:
        if target not in ("archive", "config"):
            raise
    except ServingError as err:
        check(err)


def corpus(target: str) -> dict[str, bytes]:
    """Return the inputs that fuzzing starts from, by name: the seeds, and the inputs that once
    failed."""
    return SEEDS[target] | {file.name: file.read_bytes() for file in (CORPUS / target).glob("*")}


def write_corpus(target: str, folder: Path) -> None:
    folder.mkdir()
    for name, data in corpus(target).items():
        (folder / name).write_bytes(data)
