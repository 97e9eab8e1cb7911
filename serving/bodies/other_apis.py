"""Defines the base class of bodies in the formats of other servers' APIs. Such a body contains
instances for a model's client, and is answered in the format of the same API. front/other_apis.py
defines the routes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from msgspec import Meta, Struct

from clients.base import ModelClient, Tensors
from serving.bodies.decoder import Item
from serving.bodies.instances import (
    Instances,
    InstancesJob,
    Predictions,
    items_of,
    json_items,
    total,
)
from serving.bodies.schemas import JsonObject, read
from serving.budget import MOST_INSTANCES
from serving.errors import InvalidRequest
from serving.job import Job, Step
from serving.model_status.served_model import ServedModel
from serving.request import Request, Target
from serving.triton.tensors import InferReply

TEXT: JsonObject = {"type": "string"}
TEXTS = Meta(extra_json_schema={"items": TEXT, "minItems": 1, "maxItems": MOST_INSTANCES})
Texts = str | Annotated[list[Any], TEXTS]
# The side at which tokenizers cut a text. This is not an enum, because generators of API clients
# refuse one that contains both "right" and "Right".
Direction = Annotated[str, Meta(pattern="^[Rr]ight$")]


class ApiBody(Struct, forbid_unknown_fields=True, kw_only=True):
    """A body for a model whose task is one of `tasks`."""

    model: str | None = None
    tasks: ClassVar[tuple[str, ...]] = ()

    @property
    def named(self) -> Target:
        return Target("the body", self.model)

    def bind(self, served: ServedModel, request: Request) -> Job:
        """Return the job, whose reply does not depend on the header Accept. Raise a ServingError if
        the model has another task or no client, or if the body is invalid."""
        task = served.require_client().task
        if task not in self.tasks:
            raise InvalidRequest(
                f"the task of model '{served.public_name}' is '{task}', and this route takes "
                f"{' or '.join(self.tasks)}: name another model"
            )
        return ApiJob(served, replace(request, accept="", stream=""), self)

    @classmethod
    def of(cls, data: bytes) -> "ApiBody":
        """Parse a body. Raise a ServingError if it is invalid or takes too much memory."""
        return read(cls, data)

    def items(self, client: ModelClient) -> list[Item]:
        """Return the instances. Raise a ServingError if they are invalid or too many."""
        raise NotImplementedError

    def client_parameters(self, client: ModelClient) -> Mapping[str, Any]:
        """Return the parameters for the model's client. If a value is None, the client uses the
        parameter's default."""
        raise NotImplementedError

    def entries(self, job: "ApiJob", result: Predictions) -> list[Any]:
        """Return the entries of the reply's list that are made from a batch of predictions."""
        raise NotImplementedError

    def document(self, job: "ApiJob", items: bytes) -> bytes:
        """Return the JSON of the reply. `items` is the JSON of the list's entries, without
        brackets. By default, the list is the whole reply."""
        return b"".join((b"[", items, b"]"))


class ApiJob(InstancesJob):
    """Makes predictions, and returns them in the format of another API. `tokens` counts the tokens
    that the model has read. Similarity keeps the vector of its source sentence in `source`."""

    source: Any = None

    def __init__(self, served: ServedModel, request: Request, body: ApiBody) -> None:
        client = served.require_client()
        values = body.client_parameters(client).items()
        parameters = {name: value for name, value in values if value is not None}
        super().__init__(served, request, Instances(body.items(client), parameters))
        self.body = body
        self.tokens = 0

    def finish(self, step: Step, replies: Sequence[InferReply]) -> Predictions:
        self.tokens += _tokens_read(step.batch.tensors)
        return super().finish(step, replies)

    def usage(self) -> dict[str, int]:
        return {"prompt_tokens": self.tokens, "total_tokens": self.tokens}

    def batch_items(self, result: Predictions) -> bytes:
        return json_items(self.body.entries(self, result))

    def document(self, items: bytes, version: str) -> bytes:
        return self.body.document(self, items)


def _tokens_read(tensors: Tensors) -> int:
    """Return how many tokens of a batch are not padding. If there is no attention mask, count all
    tokens."""
    if "input_ids" in tensors and "attention_mask" not in tensors:
        return tensors["input_ids"].size
    return total(tensors, "attention_mask")


def texts_of(value: str | list[Any], field: str) -> list[Item]:
    """Return an Item for each text in `value`, which is one text or a list of texts. Raise
    InvalidRequest for token ids or an empty list, and PayloadTooLarge or Overloaded for too many
    texts."""
    first = next(iter(value), "")
    if isinstance(first, int | list):
        raise InvalidRequest(
            f"the body, '{field}' holds token ids, which mean other tokens to this model; send "
            "strings (LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False))"
        )
    return items_of(value, field)
