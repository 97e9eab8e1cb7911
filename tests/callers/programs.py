"""`python programs.py NAME URL`: call the server with the client package NAME, and print as JSON
how its classes represent the replies and errors. Only the packages in .venv/callers are
available."""

import json
import sys
from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any

TEXTS = ["A man is eating food.", "Zwei Sätze. Und noch einer!", ""]
MANY = [*["a"] * 199, TEXTS[0]]
TOO_MANY = ["a"] * 2_049  # more texts than one request of OpenAI's API may have
QUERY = "the cat"
DOCUMENTS = ["the dog ran", "the cat sat on the mat", "the moon is blue", "quick"]
TOP = 3
# a PNG of one pixel
PICTURE = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4//8/AAX+Av4N70a4AAAAAElFTkSuQmCC"
)
KEY = "none"

Vectors = list[list[float]]
Embed = Callable[[Sequence[str]], Vectors]


def embedded(embed: Embed) -> dict[str, Any]:
    """Return a vector that was requested alone, and several that were requested together."""
    return {"alone": embed(TEXTS[:1])[0], "vectors": embed(TEXTS)}


def many(embed: Embed) -> tuple[int, list[float]]:
    """Request MANY embeddings at once. Return the number of vectors, and the last one."""
    vectors = embed(MANY)
    return len(vectors), vectors[-1]


def raised(error: type[Exception], *calls: Callable[[], Any]) -> list[Any]:
    """Return the errors of the calls. Calls that succeed are not listed."""
    errors: list[Any] = []
    for call in calls:
        try:
            call()
        except error as err:
            errors.append(err)
    return errors


def openai(url: str) -> dict[str, Any]:
    from openai import APIStatusError, OpenAI

    client = OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)

    def embed(texts: Any, model: str = "bert", **options: Any) -> Vectors:
        reply = client.embeddings.create(model=model, input=texts, **options)
        return [entry.embedding for entry in reply.data]

    errors = raised(
        APIStatusError,
        lambda: embed("a", "nobody"),
        lambda: embed("a", "ranking"),
        lambda: embed([1, 2]),
        lambda: embed(TOO_MANY),
    )
    usage = client.embeddings.create(model="bert", input=TEXTS).usage
    return {
        "embedders": {
            "base64": embedded(embed),
            "float": embedded(lambda texts: embed(texts, encoding_format="float")),
        },
        "many": many(embed),
        "errors": [[type(err).__name__, err.code, err.type] for err in errors],
        "tokens": usage.total_tokens,
        "dimensions": len(embed("a", dimensions=8)[0]),
        "models": [model.id for model in client.models.list()],
    }


def langchain(url: str) -> dict[str, Any]:
    import tiktoken
    from huggingface_hub import InferenceClient
    from langchain_huggingface import HuggingFaceEndpointEmbeddings
    from langchain_openai import OpenAIEmbeddings
    from openai import APIStatusError

    options = {"base_url": f"{url}/v1", "api_key": KEY, "chunk_size": 10_000}
    strings = {"check_embedding_ctx_length": False, **options}
    by_openai = OpenAIEmbeddings(model="bert", **strings)
    # replaces OpenAI's vocabulary, which tiktoken would download
    letters = tiktoken.Encoding(
        "letters",
        pat_str=".",
        mergeable_ranks={bytes([byte]): byte for byte in range(256)},
        special_tokens={},
    )
    tiktoken.get_encoding = lambda name: letters
    errors = raised(
        APIStatusError,
        lambda: OpenAIEmbeddings(model="nobody", **strings).embed_query("a"),
        lambda: OpenAIEmbeddings(model="ranking", **strings).embed_query("a"),
        lambda: OpenAIEmbeddings(model="bert", **options).embed_query("a"),
        lambda: by_openai.embed_documents(TOO_MANY),
    )
    # a URL can be set only through its client
    by_hub = HuggingFaceEndpointEmbeddings(model="bert", huggingfacehub_api_token=KEY)
    by_hub.client = InferenceClient(model=f"{url}/pipeline/bert", token=KEY)
    return {
        "embedders": {
            "OpenAIEmbeddings": embedded(by_openai.embed_documents),
            "HuggingFaceEndpointEmbeddings": embedded(by_hub.embed_documents),
        },
        "many": many(by_openai.embed_documents),
        "errors": [[type(err).__name__, err.code, err.message] for err in errors],
    }


def llama_index(url: str) -> dict[str, Any]:
    from llama_index.core.schema import NodeWithScore, TextNode
    from llama_index.embeddings.huggingface_api import HuggingFaceInferenceAPIEmbedding
    from llama_index.embeddings.openai_like import OpenAILikeEmbedding
    from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference
    from openai import APIStatusError

    def by_openai(model: str) -> Any:
        return OpenAILikeEmbedding(
            model_name=model, api_base=f"{url}/v1", api_key=KEY, embed_batch_size=1_000
        )

    by_tei = TextEmbeddingsInference(
        model_name="bert", base_url=f"{url}/models/bert", embed_batch_size=1_000
    )
    by_hub = HuggingFaceInferenceAPIEmbedding(
        model_name=f"{url}/pipeline/bert", token=KEY, pooling=None
    )
    nodes = [NodeWithScore(node=TextNode(text=text, id_=text)) for text in DOCUMENTS]
    ranker = TextEmbeddingInference(base_url=f"{url}/models/ranking", top_n=TOP)
    ranked = ranker.postprocess_nodes(nodes, query_str=QUERY)
    errors = raised(
        APIStatusError,
        lambda: by_openai("nobody").get_text_embedding("a"),
        lambda: by_openai("ranking").get_text_embedding("a"),
    )
    one_by_one = by_hub.get_text_embedding_batch(TEXTS)  # a request for each
    return {
        "embedders": {
            "OpenAILikeEmbedding": embedded(by_openai("bert").get_text_embedding_batch),
            "TextEmbeddingsInference": embedded(by_tei.get_text_embedding_batch),
        },
        "many": many(by_tei.get_text_embedding_batch),
        "one_by_one": one_by_one,
        "rankings": {
            "TextEmbeddingInference": [
                [DOCUMENTS.index(each.node.id_), each.score] for each in ranked
            ]
        },
        "errors": [[type(err).__name__, err.code] for err in errors],
    }


def haystack(url: str) -> dict[str, Any]:
    from haystack import Document
    from haystack.components.embedders import OpenAIDocumentEmbedder
    from haystack.utils import Secret
    from haystack_integrations.components.embedders.huggingface_api import (
        HuggingFaceAPIDocumentEmbedder,
    )
    from haystack_integrations.components.rankers.cohere import CohereRanker
    from haystack_integrations.components.rankers.huggingface_api import (
        HuggingFaceTEIRanker,
        TruncationDirection,
    )

    key = Secret.from_token(KEY)

    def by_openai(model: str = "bert") -> Any:
        return OpenAIDocumentEmbedder(
            model=model,
            api_base_url=f"{url}/v1",
            api_key=key,
            batch_size=10_000,
            raise_on_failure=True,
        )

    def embed(embedder: Any, texts: Sequence[str]) -> Vectors:
        # the id of a document is derived from its content and its meta
        documents = [Document(content=text, meta={"at": at}) for at, text in enumerate(texts)]
        return [document.embedding for document in embedder.run(documents)["documents"]]

    by_tei = HuggingFaceAPIDocumentEmbedder(
        api_type="text_embeddings_inference",
        api_params={"url": f"{url}/pipeline/bert"},
        token=key,
        normalize=True,
        batch_size=10_000,
    )
    documents = [Document(content=text) for text in DOCUMENTS]
    too_many = [Document(content=f"text {number}") for number in range(1_001)]

    def rank(ranker: Any, **options: Any) -> list[Any]:
        ranked = ranker.run(query=QUERY, documents=documents, top_k=TOP, **options)["documents"]
        return [[DOCUMENTS.index(each.content), each.score] for each in ranked]

    def cohere_ranker(model: str) -> Any:
        return CohereRanker(model=model, api_base_url=url, api_key=key)

    direction = TruncationDirection.RIGHT
    errors = raised(
        Exception,
        lambda: embed(by_openai("nobody"), ["a"]),
        lambda: embed(by_openai(), TOO_MANY),
        lambda: rank(cohere_ranker("nobody")),
        lambda: HuggingFaceTEIRanker(url=url, max_retries=1).run(QUERY, too_many),
    )
    return {
        "embedders": {
            "OpenAIDocumentEmbedder": embedded(lambda texts: embed(by_openai(), texts)),
            "HuggingFaceAPIDocumentEmbedder": embedded(lambda texts: embed(by_tei, texts)),
        },
        "many": many(lambda texts: embed(by_openai(), texts)),
        "rankings": {
            "CohereRanker": rank(cohere_ranker("ranking")),
            "HuggingFaceTEIRanker": rank(
                HuggingFaceTEIRanker(url=url, token=key), truncation_direction=direction
            ),
        },
        "errors": [[type(err).__name__, str(err)] for err in errors],
    }


def cohere(url: str) -> dict[str, Any]:
    from cohere import Client, ClientV2
    from cohere.core.api_error import ApiError

    ask = {"model": "ranking", "query": QUERY, "documents": DOCUMENTS, "top_n": TOP}
    old = Client(api_key=KEY, base_url=url)
    new = ClientV2(api_key=KEY, base_url=url)
    documents = [{"text": text, "year": "2024"} for text in DOCUMENTS]
    objects = old.rerank(**ask | {"documents": documents}, return_documents=True).results
    errors = raised(
        ApiError,
        lambda: new.rerank(**ask | {"model": "nobody"}),
        lambda: new.rerank(**ask | {"model": "bert"}),
        lambda: new.rerank(**ask | {"documents": ["a"] * 1_001}),
        lambda: old.rerank(**ask | {"model": "nobody"}),
    )
    return {
        "rankings": {
            "Client": [[each.index, each.relevance_score] for each in objects],
            "ClientV2": [
                [each.index, each.relevance_score]
                for each in new.rerank(**ask, max_tokens_per_doc=4_096).results
            ],
        },
        "texts": [each.document.text for each in objects],
        "documents": [each.document for each in old.rerank(**ask).results],
        "errors": [[type(err).__name__, err.status_code, err.body] for err in errors],
    }


def huggingface_hub(url: str) -> dict[str, Any]:
    from huggingface_hub import InferenceClient
    from huggingface_hub.errors import HfHubHTTPError

    def client(model: str) -> Any:
        return InferenceClient(model=f"{url}/pipeline/{model}", token=KEY)

    def embed(texts: Any, **options: Any) -> Vectors:
        vectors: Vectors = client("bert").feature_extraction(texts, **options).tolist()
        return vectors

    as_tei = {"truncate": True, "truncation_direction": "right", "encoding_format": "float"}
    opinions = client("opinions").text_classification("a", top_k=2)
    answer = client("answers").question_answering(question="Where?", context="In Berlin.")
    labels = client("zero_shot").zero_shot_classification("a", candidate_labels=["dogs", "cats"])
    errors = raised(
        HfHubHTTPError,
        lambda: client("nobody").feature_extraction("a"),
        lambda: client("ranking").feature_extraction("a"),
        lambda: client("opinions").text_classification("a", top_k=0),
    )
    boxes = client("boxes").object_detection(PICTURE, threshold=0.9)
    return {
        "embedders": {
            "InferenceClient": embedded(embed),
            "as TEI": embedded(lambda texts: embed(texts, **as_tei)),
        },
        "many": many(embed),
        "similarity": client("bert").sentence_similarity(TEXTS[0], other_sentences=TEXTS),
        "opinions": [[each.label, each.score] for each in opinions],
        "labels": [[each.label, each.score] for each in labels],
        "answer": [answer.answer, answer.score, answer.start, answer.end],
        "entities": [
            [each.entity_group, each.word, each.score]
            for each in client("entities").token_classification("a dog")
        ],
        "masks": [
            [each.token_str, each.score] for each in client("masks").fill_mask("a [MASK]", top_k=2)
        ],
        "picture": [
            [each.label, each.score] for each in client("resnet").image_classification(PICTURE)
        ],
        "boxes": [[each.label, each.score, each.box.xmax] for each in boxes],
        "errors": [
            [type(err).__name__, err.response.status_code, err.server_message] for err in errors
        ],
    }


PROGRAMS: dict[str, Callable[[str], dict[str, Any]]] = {
    program.__name__: program
    for program in (openai, langchain, llama_index, haystack, cohere, huggingface_hub)
}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](sys.argv[2])))
