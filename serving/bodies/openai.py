"""Reads requests of OpenAI's API for embeddings, and writes the replies."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from msgspec import Meta

from clients.base import ModelClient
from serving.bodies.decoder import Item
from serving.bodies.instances import Predictions, object_with_list
from serving.bodies.other_apis import TEXT, ApiBody, ApiJob, texts_of
from serving.bodies.schemas import Count
from serving.errors import InvalidRequest

MOST_INPUTS = 2_048  # texts in a request; OpenAI's own server has the same limit
TEXTS = Meta(extra_json_schema={"items": TEXT, "minItems": 1, "maxItems": MOST_INPUTS})


class Embeddings(ApiBody, kw_only=True):
    """Embed each text, in the format of OpenAI's API.

    `encoding_format` base64 returns little-endian FP32. Token ids are refused, because each model
    has its own vocabulary. `user` is ignored.
    """

    input: str | Annotated[list[Any], TEXTS]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    user: Any = None
    tasks: ClassVar[tuple[str, ...]] = ("embedding",)

    def items(self, client: ModelClient) -> list[Item]:
        items = texts_of(self.input, "input")
        if len(items) > MOST_INPUTS:
            raise InvalidRequest(
                f"the body, 'input' has {len(items)} texts; send at most {MOST_INPUTS} at a time"
            )
        return items

    def client_parameters(self, client: ModelClient) -> Mapping[str, Any]:
        return {"dimensions": self.dimensions}

    def entries(self, job: ApiJob, result: Predictions) -> list[Any]:
        vectors = [prediction["embedding"] for prediction in result.predictions]
        if self.encoding_format == "base64":
            vectors = [_base64(vector) for vector in vectors]
        return [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors, result.batch.first)
        ]

    def document(self, job: ApiJob, items: bytes) -> bytes:
        about = {"object": "list", "model": job.served.public_name, "usage": job.usage()}
        return object_with_list(about, "data", items)


def _base64(vector: Any) -> str:
    return b64encode(np.asarray(vector, "<f4").tobytes()).decode()
