"""What schemathesis has to know besides the schema to make requests that are right (SCHEMATHESIS_HOOKS): pictures, and
which model takes what.

Those that it makes wrong on purpose stay as they are.
"""

from __future__ import annotations  # Case has no index at run time

import base64
import io
from typing import Any

import schemathesis
from hypothesis import strategies
from PIL import Image
from schemathesis import Case, GenerationMode, HookContext
from schemathesis.core.parameters import ParameterLocation

INPUTS = ("input_ids", "attention_mask", "token_type_ids")  # of bert
JSON = "application/json"
SIZES = ((8, 8), (64, 48), (300, 200))


def png(size: tuple[int, int]) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, "white").save(file, "PNG")
    return file.getvalue()


PICTURES = [png(size) for size in SIZES]
KINDS = [f"image/{name}" for name in ("jpeg", "webp", "gif", "bmp", "tiff")]  # what it is, the file itself says
OTHERS = ["application/octet-stream", "application/x-image"]
schemathesis.openapi.media_type("image/png", strategies.sampled_from(PICTURES), aliases=[*KINDS, *OTHERS])
schemathesis.openapi.format(
    "image-base64", strategies.sampled_from([base64.b64encode(picture).decode() for picture in PICTURES])
)


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    if case.meta is None:
        return
    query = case.meta.components.get(ParameterLocation.QUERY)
    if case.path == "/invocations" and case.media_type == JSON and (query is None or is_right(query)):
        case.query = {}  # a JSON body names its own model, or none
    if all(map(is_right, (case.meta.generation, *case.meta.components.values()))):
        complete(case)


def complete(case: Case[Any]) -> None:
    if case.path == "/invocations":
        invocation(case)
    elif case.path.endswith("/infer") and isinstance(case.body, dict):
        case.body["inputs"] = [one(name) for name in INPUTS]
    elif "/generate" in case.path:
        case.body = {name: [0] for name in INPUTS}


def is_right(part: Any) -> bool:
    return bool(part.mode == GenerationMode.POSITIVE)


def invocation(case: Case[Any]) -> None:
    """A query string names the model of a raw body."""
    if case.media_type != JSON:
        case.query = {"model_name": "bert" if case.media_type == "text/plain" else "resnet"}


def one(name: str) -> dict[str, Any]:
    return {"name": name, "datatype": "INT64", "shape": [1, 1], "data": [0]}
