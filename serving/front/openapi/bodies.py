"""The media types of /openapi.json: what the routes that infer take and give, by the constants that the bodies
(serving/bodies) are read and written by."""

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from clients.base import ModelClient
from serving.bodies.csv_rows import CSV, as_csv
from serving.bodies.instances import PICTURES
from serving.bodies.json_lines import JSON_LINES, LINES_TYPES
from serving.bodies.kserve import BINARY_TYPE, HEADER_LENGTH
from serving.bodies.npy import NPY_TYPE
from serving.codecs import FORM, Codec
from serving.codecs.image import FORMATS
from serving.front.openapi.fixed import Json
from serving.front.openapi.schemas import (
    FILES,
    INPUTS,
    ITSELF,
    OUTPUTS,
    PAYLOAD,
    REPLY,
    REQUEST,
    RESULT,
    TENSORS,
    Schemas,
    any_of,
    example_of,
    is_picture,
    reference,
    tensors_example,
    words,
)
from serving.front.streams import EVENTS
from serving.headers import JSON_TYPE

EVENTS_TYPE = EVENTS.media_type.partition(";")[0]
OCTETS = "application/octet-stream"
NOT_RAW = (JSON_TYPE, FORM)
FILE, TEXT = {"type": "string", "format": "binary"}, {"type": "string", "minLength": 1}
EVENT: Json = {  # one of a stream
    "type": "object",
    "properties": {"data": {"type": "string", "contentMediaType": JSON_TYPE}, "event": {"type": "string"}},
    "required": ["data"],
}
LINES_TEXT = "a line for each instance, or for any JSON body of this route; each is answered by a line"


class Bodies:
    """`replies` as openapi.document has them."""

    def __init__(self, schemas: Schemas, replies: Mapping[str, Any]) -> None:
        self._schemas, self._models, self._replies = schemas, schemas.models, replies

    def taken(self, names: Iterable[str]) -> Json:
        """Of /invocations, for these models."""
        known = sorted(names)
        found: Json = {JSON_TYPE: self._json(known), **self._raw(known)}
        if forms := [name for name in self._clients(known) if FORM in self._codec(name).media_types]:
            found[FORM] = {"schema": any_of([reference(name, FILES) for name in forms])}
        found |= dict.fromkeys(LINES_TYPES, self._lines(known))
        if single := [name for name in known if len(self._models[name].model.inputs) == 1]:
            found[NPY_TYPE] = _files("numpy's file of the model's only input", self._signatures(single))
        return found | {BINARY_TYPE: _files(_HEADER, self._signatures(known))}

    def given(self, names: Iterable[str]) -> Json:
        """What /invocations answers for them."""
        known = sorted(names)
        clients = self._clients(known)
        kinds = [reference(name, kind) for kind in (REPLY, RESULT) for name in clients]
        schema = any_of([*kinds, *(reference(name, OUTPUTS) for name in known)] or [{"type": "object"}])
        found: Json = {JSON_TYPE: {"schema": schema, "examples": _values(self._answers(clients))}}
        found[JSON_LINES] = {"schema": TEXT, "examples": _values(self._lines_of(clients))}
        found[EVENTS_TYPE] = {"schema": EVENT}
        if any(type(self._client(name)).draw is not ModelClient.draw for name in clients):
            found |= {kind: {"schema": FILE} for kind in PICTURES}
        if any(CSV in self._codec(name).media_types for name in clients):
            rows = {name: as_csv(reply["predictions"]).decode() for name, reply in self._answers(clients)}
            found[CSV] = {"schema": TEXT, "examples": _values(rows.items())}
        if any(len(self._models[name].model.outputs) == 1 for name in known):
            found[NPY_TYPE] = _files("the model's only output, of a body that is such a file", {})
        return found | {BINARY_TYPE: _files("outputs that were asked for as binary", {})}

    def tensors(self, name: str) -> Json:
        """Of KServe's infer."""
        example = tensors_example(self._models[name])
        schema = {"schema": reference(name, TENSORS)} | ({"example": example} if example else {})
        return {JSON_TYPE: schema, OCTETS: _files(f"the JSON, of {HEADER_LENGTH} bytes, and {_BEHIND}", {})}

    def outputs(self, name: str) -> Json:
        return {JSON_TYPE: {"schema": reference(name, OUTPUTS)}, OCTETS: _files("outputs asked for as binary", {})}

    def flat(self, name: str) -> Json:
        """Of Triton's generate."""
        inputs = self._models[name].model.inputs
        properties = {spec.name: {"description": words(spec)} for spec in inputs}
        return {JSON_TYPE: {"schema": {"type": "object", "minProperties": 1, "properties": properties}}}

    def _json(self, names: list[str]) -> Json:
        clients = self._clients(names)
        kinds = [reference(name, kind) for kind in (REQUEST, INPUTS, PAYLOAD) for name in clients]
        kinds += [reference(name, ITSELF) for name in clients if self._schemas.records(name)]
        kinds += [_named(name) for name in names]
        examples = {name: self._request(name) for name in clients}
        small = {name: tensors_example(self._models[name]) for name in names}
        tensors = {f"{name}, tensors": {"model_name": name, **body} for name, body in small.items() if body}
        return {"schema": any_of(kinds or [{"type": "object"}]), "examples": _values((examples | tensors).items())}

    def _raw(self, names: list[str]) -> Json:
        """Bodies that are one instance as it is, or rows of CSV; the query string names their model."""
        found: dict[str, Json] = {}
        for name in self._clients(names):
            for kind in _media_types(self._codec(name)):
                entry = found.setdefault(kind, {"schema": FILE})
                if not is_picture(self._client(name)):
                    entry["schema"] = TEXT
                    entry.setdefault("examples", {})[name] = {"value": self._text(name, kind)}
        return dict(sorted(found.items()))

    def _text(self, name: str, kind: str) -> str:
        """The model's example as a raw body."""
        instance = self._instance(name)
        rows = kind == CSV and isinstance(instance, list)
        return as_csv([instance]).decode() if rows else example_of(self._models[name]).decode().strip()

    def _lines(self, names: list[str]) -> Json:
        lines = {name: _line(self._instance(name)) for name in self._clients(names)}
        return {"schema": TEXT | {"description": LINES_TEXT}, "examples": _values(lines.items())}

    def _lines_of(self, names: list[str]) -> Iterator[tuple[str, str]]:
        return ((name, "".join(map(_line, reply["predictions"]))) for name, reply in self._answers(names))

    def _answers(self, names: list[str]) -> list[tuple[str, Any]]:
        return [(name, self._replies[name]) for name in names if name in self._replies]

    def _clients(self, names: list[str]) -> list[str]:
        return [name for name in names if self._models[name].client]

    def _client(self, name: str) -> ModelClient:
        return self._models[name].require_client()

    def _codec(self, name: str) -> Codec:
        return self._client(name).codec

    def _signatures(self, names: list[str]) -> dict[str, str]:
        return {name: ", ".join(f"{s.name} {words(s)}" for s in self._models[name].model.inputs) for name in names}

    def _request(self, name: str) -> Json:
        return {"model_name": name, "instances": [self._instance(name)]}

    def _instance(self, name: str) -> Any:
        codec, example = self._codec(name), example_of(self._models[name])
        if is_picture(self._client(name)):
            return {codec.part: base64.b64encode(example).decode()}
        return example.decode().strip() if codec.name == "text" else orjson.loads(example)


_BEHIND = "behind it the inputs whose parameters say binary_data_size, one after the other"
_HEADER = (
    f"the Content-Type is '{BINARY_TYPE};json-header-size=N': the JSON, of N bytes, and {_BEHIND}; where N is 0, all "
    "bytes are those of the model's only input"
)


def _files(text: str, signatures: Mapping[str, str]) -> Json:
    lines = [text, *(f"{name}: {signature}" for name, signature in signatures.items())]
    return {"schema": FILE | {"description": "\n".join(lines)}}


def _named(name: str) -> Json:
    """A body of tensors, which names its model."""
    named = {"type": "object", "properties": {"model_name": {"const": name}}, "required": ["model_name"]}
    return {"allOf": [reference(name, TENSORS), named]}


def _values(examples: Iterable[tuple[str, Any]]) -> Json:
    return {name: {"value": value} for name, value in examples}


def _line(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE).decode()


def _media_types(codec: Codec) -> Iterator[str]:
    for kind in codec.media_types:
        if kind == "image/*":
            yield from (f"image/{each.lower()}" for each in FORMATS)
        elif kind not in NOT_RAW:
            yield kind
