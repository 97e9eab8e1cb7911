"""Requests of programs that are not Python packages, as their code sends them, and how each program
reads the reply."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.callers.programs import DOCUMENTS, QUERY, TEXTS

JSON = {"Content-Type": "application/json"}
BEARER = JSON | {"Authorization": "Bearer none"}
CHUNKS = [*["a"] * 497, *TEXTS]  # AnythingLLM sends 500 at a time
ASK = {"model": "ranking", "query": QUERY, "documents": DOCUMENTS}


@dataclass(frozen=True)
class Recorded:
    """A request, and how the program reads the reply: the vectors and the tokens, or the index and
    the score of each document."""

    path: str
    body: Mapping[str, Any]
    read: Callable[[Any], Any]
    headers: Mapping[str, str] = field(default_factory=lambda: BEARER)


def read_dify(reply: Any) -> Any:
    vectors = [entry["embedding"] for entry in reply["data"]]
    usage = reply.get("usage") or {}
    return vectors, usage.get("prompt_tokens") or usage.get("total_tokens")


def read_open_webui(reply: Any) -> Any:
    if "data" in reply:
        return [entry["embedding"] for entry in reply["data"]], None
    return None


def read_anything_llm(reply: Any) -> Any:
    entries = reply["data"]
    packed = [base64.b64decode(entry["embedding"]) for entry in entries if "embedding" in entry]
    return [np.frombuffer(data, "<f4").tolist() for data in packed][-len(TEXTS) :], None


EMBEDDINGS = {
    "dify": Recorded("/v1/embeddings", {"model": "bert", "input": TEXTS}, read_dify),
    "dify without a key": Recorded(
        "/v1/embeddings",
        {"model": "bert", "input": TEXTS, "encoding_format": "float"},
        read_dify,
        JSON | {"Authorization": ""},
    ),
    "open-webui": Recorded("/v1/embeddings", {"input": TEXTS, "model": "bert"}, read_open_webui),
    "AnythingLLM": Recorded(
        "/v1/embeddings",
        {"model": "bert", "input": CHUNKS, "encoding_format": "base64"},
        read_anything_llm,
    ),
}


def rank_dify(reply: Any) -> Any:
    entries = [
        [each.get("index", 0), each.get("relevance_score", 0.0)] for each in reply["results"]
    ]
    entries.sort(key=lambda entry: entry[1], reverse=True)
    return entries


def rank_old_dify(reply: Any) -> Any:
    results = reply["results"]
    texts = [each.get("document", {}).get("text", "") for each in results]
    return [
        [DOCUMENTS.index(text), each["relevance_score"]]
        for text, each in zip(texts, results, strict=True)
    ]


def rank_open_webui(reply: Any) -> Any:
    by_index = sorted(reply["results"], key=lambda result: result["index"])
    scores = [result["relevance_score"] for result in by_index]
    return sorted(map(list, enumerate(scores)), key=lambda entry: -entry[1])


RANKINGS = {
    "dify": Recorded("/v1/rerank", ASK | {"top_n": 4}, rank_dify),
    "dify until 2025": Recorded(
        "/v1/rerank", ASK | {"top_n": None, "return_documents": True}, rank_old_dify
    ),
    "open-webui": Recorded("/v1/rerank", ASK | {"top_n": 4}, rank_open_webui),
}
