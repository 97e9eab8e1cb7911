"""Defines the shapes that a JSON body may have, as msgspec's Structs. They validate bodies, and
become the schemas in /openapi.json.

The keys of a body determine its shape (documents.py). A limit that appears only in an
`extra_json_schema` is checked where the value is used, because an error raised there can name the
tensor or the limit.
"""

import re
import threading
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from serving.budget import (
    MOST_DIMENSIONS,
    MOST_INSTANCES,
    MOST_NAMED,
    check_count,
    json_mistake,
    json_turn,
)
from serving.errors import InvalidRequest
from serving.headers import JSON_LINES
from serving.named_value import unknown
from serving.request import NAME_KEYS, VERSION_KEY, Target
from serving.triton.tensors import DATATYPES

Type = TypeVar("Type")
JsonObject = dict[str, Any]
SCALAR = Meta(extra_json_schema={"type": ["boolean", "integer", "number", "string"]})
Parameters = dict[str, Annotated[Any, SCALAR]]
Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**63 - 1)]
UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
Values = Annotated[list[Any], Meta(extra_json_schema={"items": {}})]
# About how many levels deep lists and objects may be nested, for the error message. Python allows
# 1,000 nested calls, and msgspec uses one for each level.
DEEPEST = 900
BOM = b"\xef\xbb\xbf"  # the byte order mark that editors and spreadsheets write before UTF-8


class Named(Struct, kw_only=True):
    """The optional keys with which a body names its model and version."""

    model_name: str | None = None
    modelname: str | None = None
    model_version: str | int | None = None

    def target(self, source: str = "the body") -> Target:
        values = {}
        for key in (*NAME_KEYS, VERSION_KEY):
            value = getattr(self, key)
            if value is not None:
                values[key] = str(value)
        return Target.within(source, values)


class ForClient(Named, kw_only=True, forbid_unknown_fields=True):
    """A body for a model with a client. (`Inputs` may also be for a model without one.)"""

    parameters: JsonObject | None = None


class Instances(ForClient, kw_only=True):
    """One or more instances, answered with one prediction each in the same order."""

    instances: Annotated[
        list[Any], Meta(min_length=1, extra_json_schema={"maxItems": MOST_INSTANCES})
    ]


class Inputs(ForClient, kw_only=True):
    """One instance or a list of them, in the format of Hugging Face's toolkit. For a model without
    a client: nested lists, or {input: nested lists}."""

    inputs: Any


class Frame(Struct, forbid_unknown_fields=True):
    """A table as pandas writes it with orient="split"."""

    columns: Values
    data: list[Values]
    index: Any = None


class DataframeSplit(ForClient, kw_only=True):
    """Rows of a table, as MLflow's clients send them."""

    dataframe_split: Frame


class DataframeRecords(ForClient, kw_only=True):
    """Rows of a table as objects whose keys are the columns, as MLflow's clients send them."""

    dataframe_records: list[JsonObject]


class Payload(ForClient, kw_only=True):
    """One instance, or an image in base64 as {"img": …}. The answer is {"modelname", "result"}."""

    payload: Any


class Picture(Struct, forbid_unknown_fields=True):
    """An image in base64 as the payload."""

    img: Any


class TensorParameters(Struct):
    shared_memory_region: Annotated[Any, Meta(extra_json_schema={"not": {}})] = UNSET

    def __post_init__(self) -> None:
        """Raise ValueError if a caller uses shared memory, because Triton's regions are for this
        server only. msgspec adds the location of the tensor to the error."""
        if self.shared_memory_region is not UNSET:
            raise ValueError("there is no shared memory with a caller; send the data in the body")


class InputParameters(TensorParameters):
    binary_data_size: Size | None = None


class OutputParameters(TensorParameters):
    binary_data: bool | UnsetType = UNSET
    classification: Count | UnsetType = UNSET


class Input(Struct, forbid_unknown_fields=True):
    """A tensor with its values in `data`, nested or flat, or in `binary_data_size` bytes after the
    JSON."""

    name: str
    shape: Annotated[list[Size], Meta(max_length=MOST_DIMENSIONS)]
    datatype: Annotated[str, Meta(extra_json_schema={"enum": sorted(DATATYPES)})]
    data: Any = UNSET
    parameters: InputParameters | None = None


class Output(Struct, forbid_unknown_fields=True):
    name: str
    parameters: OutputParameters | None = None


class Tensors(Named, kw_only=True):
    """Tensors in the format of KServe v2."""

    inputs: list[Input]
    outputs: list[Output] = []
    parameters: Parameters | None = None
    id: str = ""
    sequence_end: bool | int | str | UnsetType = UNSET

    def __post_init__(self) -> None:
        check_count(len(self.inputs), MOST_NAMED, "inputs")
        check_count(len(self.outputs), MOST_NAMED, "outputs")


class Flat(Named, kw_only=True):
    """Inputs by their names, in the format of Triton's generate extension. Every other key is a
    parameter."""

    id: str | int | None = None
    parameters: Parameters | None = None


class RepositoryIndex(Struct, forbid_unknown_fields=True):
    """Selects which models the index lists: only those that are ready, or all."""

    ready: bool = False


class Load(Struct):
    """The body of POST /models: a model's name, and the folder with the model."""

    model_name: str
    url: str


_PREPARED: set[Any] = set()
_PREPARING = threading.Lock()


def prepare(shape: Any) -> None:
    """Make msgspec prepare its description of a shape while no other thread does so. msgspec stores
    the description in the class before it is complete, and another thread that reads it at that
    moment would crash the worker (SIGSEGV)."""
    with _PREPARING:
        if shape not in _PREPARED:
            msgspec.json.Decoder(shape)
            _PREPARED.add(shape)


def read(
    shape: type[Type], value: bytes | Mapping[str, Any], subject: str = "the body", hint: str = ""
) -> Type:
    """Parse a JSON text, or convert a parsed object, to `shape`, which is a Struct or any other
    type that msgspec supports. If it is invalid JSON or has another shape, raise InvalidRequest,
    whose message begins with `subject` and usually ends with `hint`. If the JSON takes too much
    memory, raise PayloadTooLarge or Overloaded."""
    prepare(shape)
    try:
        if isinstance(value, Mapping):
            return msgspec.convert(value, shape)
        text = value.removeprefix(BOM)
        with json_turn(text):
            return msgspec.json.decode(text, type=shape)
    except msgspec.ValidationError as err:
        raise InvalidRequest(_explained(err, shape, subject) + hint) from err
    except RecursionError as err:
        raise InvalidRequest(
            f"{subject} has lists or objects nested more than about {DEEPEST} deep"
        ) from err
    except UnicodeDecodeError as err:
        raise InvalidRequest(
            f"{subject} has a string that is not UTF-8 ({err.reason}){hint}"
        ) from err
    except ValueError as err:
        if "trailing characters" in str(err):
            hint = f"; /invocations takes several documents as JSON lines, {JSON_LINES}"
        mistake = json_mistake(err, text, hint)
        raise InvalidRequest(f"{subject} is not valid JSON: {mistake}") from err


def _explained(error: msgspec.ValidationError, shape: Any, subject: str) -> str:
    """Return msgspec's message, preceded by the location of the mistake. If a key is unknown, list
    the known keys."""
    message, _, location = str(error).partition(" - at `$")
    location = location.removeprefix(".").removesuffix("`")
    where = f"{subject}, '{location}'" if location else subject
    unknown_field = UNKNOWN_FIELD.fullmatch(message)
    if unknown_field:
        part = location.partition("[")[0]
        part_type = get_type_hints(shape).get(part, shape)
        struct = next(iter(get_args(part_type)), part_type)  # if it is a list, its items' type
        problem = unknown("key", unknown_field[1], struct.__struct_fields__)
        if issubclass(shape, ForClient):
            problem += " (put a model's parameters into 'parameters')"
        return f"{where}: {problem}"
    first = message[:1]
    rest = message[1:]
    return f"{where}: {first.lower()}{rest}"
