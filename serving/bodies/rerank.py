"""Reads requests for rankings, and answers them, in the formats of Cohere, Jina and
text-embeddings-inference (TEI)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct

from clients.base import ModelClient
from serving.bodies.decoder import Item
from serving.bodies.instances import Predictions, object_with_list
from serving.bodies.other_apis import ApiBody, ApiJob, Direction
from serving.bodies.schemas import Count, JsonObject


class Document(Struct):
    """A document that is an object. Keys other than `text` are ignored."""

    text: str


class Rerank(ApiBody, kw_only=True):
    """Rank documents by how well they answer a query.

    `documents` is answered in the format of Cohere's API, `texts` in that of TEI. Scores are
    between 0 and 1 unless `raw_scores` is set. `max_tokens_per_doc` is ignored.
    """

    query: str
    documents: list[str | Document] | None = None
    texts: list[str] | None = None
    top_n: Count | None = None
    return_documents: bool = False
    return_text: bool = False
    raw_scores: bool = False
    truncate: bool | None = None
    truncation_direction: Direction | None = None
    max_tokens_per_doc: Any = None
    tasks: ClassVar[tuple[str, ...]] = ("text-ranking",)

    def __post_init__(self) -> None:
        if (self.documents is None) == (self.texts is None):
            raise ValueError("Send either 'documents' or 'texts'")

    def items(self, client: ModelClient) -> list[Item]:
        documents = self.documents or self.texts or ()
        value = {"query": self.query, "documents": list(map(_text, documents))}
        return [Item("", value=value)]

    def client_parameters(self, client: ModelClient) -> Mapping[str, Any]:
        return {
            "top_k": self.top_n,
            "function_to_apply": "none" if self.raw_scores else "sigmoid",
            "return_documents": self.return_documents or self.return_text,
            "truncate": self.truncate,
        }

    def entries(self, job: ApiJob, result: Predictions) -> list[Any]:
        (prediction,) = result.predictions
        score_key = "relevance_score" if self.texts is None else "score"
        entries = []
        for ranked in prediction["ranking"]:
            entry: JsonObject = {"index": ranked["index"], score_key: ranked["score"]}
            if self.return_documents:
                entry["document"] = {"text": ranked["document"]}
            if self.return_text:
                entry["text"] = ranked["document"]
            entries.append(entry)
        return entries

    def document(self, job: ApiJob, items: bytes) -> bytes:
        if self.texts is not None:
            return super().document(job, items)
        about = {"id": job.request.id, "model": job.served.public_name, "usage": job.usage()}
        return object_with_list(about, "results", items)


def _text(document: str | Document) -> str:
    return document if isinstance(document, str) else document.text
