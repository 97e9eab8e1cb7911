"""Reads requests and writes replies in the formats of text-embeddings-inference (TEI) and of
Hugging Face's InferenceClient."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from msgspec import Struct

from clients.base import ModelClient
from serving.bodies.decoder import Item
from serving.bodies.instances import Predictions, items_of
from serving.bodies.other_apis import ApiBody, ApiJob, Direction, Texts
from serving.bodies.schemas import Count, JsonObject, read
from serving.errors import InvalidRequest
from serving.job import Job
from serving.model_status.served_model import ServedModel
from serving.request import Request


@dataclass(frozen=True)
class PipelineFormat:
    """Describes the format in which a pipeline of Hugging Face answers. `key` selects a field of
    our prediction, which may be a list of objects. `fields` maps the keys that these objects have
    in the pipeline's answer to the keys that they have in ours; without `fields`, the value is not
    changed. If `is_single` is true, a list with only one entry is replaced by the entry. If
    `is_listed` is true, the reply to a single instance is a list too."""

    key: str
    fields: Mapping[str, str] = field(default_factory=dict)
    is_single: bool = False
    is_listed: bool = False

    def convert(self, prediction: Mapping[str, Any]) -> Any:
        entries = prediction[self.key]
        if self.is_single and len(entries) == 1:
            entries = entries[0]
        return self._renamed(entries) if self.fields else entries

    def _renamed(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._renamed(entry) for entry in value]
        return {theirs: value[ours] for theirs, ours in self.fields.items()}


CLASS = {"label": "label", "score": "score"}
WORD = {"score": "score", "word": "word", "start": "start", "end": "end"}
ANSWER = {"answer": "answer", "score": "score", "start": "start", "end": "end"}
TOKEN = {"score": "score", "token": "token_id", "token_str": "token", "sequence": "sequence"}
# maps the task of a model's client to the format in which the pipeline for that task answers
FORMATS = {
    "embedding": PipelineFormat("embedding", is_listed=True),
    "fill-mask": PipelineFormat("masks", TOKEN, is_single=True),
    "image-classification": PipelineFormat("classes", CLASS),
    "image-embedding": PipelineFormat("embedding", is_listed=True),
    "object-detection": PipelineFormat("detections", CLASS | {"box": "box"}),
    "question-answering": PipelineFormat("answers", ANSWER, is_single=True),
    "text-classification": PipelineFormat("classes", CLASS, is_listed=True),
    "token-classification": PipelineFormat("entities", {"entity_group": "label"} | WORD),
    "zero-shot-classification": PipelineFormat("classes", CLASS),
}
# the pipelines' default values of parameters, where they differ from ours, keyed by task
DEFAULTS = {"token-classification": {"aggregation_strategy": "simple"}}
OURS = {"threshold": "confidence"}  # maps the pipelines' names of parameters to ours
# the fields of a Pipeline that become parameters of the same names
PARAMETER_FIELDS = ("truncate", "normalize", "dimensions", "prompt_name")


class Pipeline(ApiBody, kw_only=True):
    """Answer as the pipeline of the model's task does, for Hugging Face's InferenceClient.

    `inputs` is an instance or a list of instances, with images in base64. An image or a text may
    also be the whole body.
    """

    inputs: Any
    parameters: JsonObject | None = None
    truncate: bool | None = None
    normalize: bool | None = None
    dimensions: Count | None = None
    prompt_name: str | None = None
    truncation_direction: Direction | None = None
    encoding_format: Literal["float"] | None = None
    tasks: ClassVar[tuple[str, ...]] = tuple(FORMATS)

    @classmethod
    def of(cls, data: bytes) -> ApiBody:
        if not data:
            raise InvalidRequest('the body is empty; send an image, a text or {"inputs": …}')
        is_object = data[:100].lstrip().startswith(b"{")
        return super().of(data) if is_object else cls(inputs=data)  # an image or a text

    def bind(self, served: ServedModel, request: Request) -> Job:
        if isinstance(self.inputs, dict) and "source_sentence" in self.inputs:
            similarity = {"inputs": self.inputs, "parameters": self.parameters}
            return read(Similarity, similarity).bind(served, request)
        return super().bind(served, request)

    def items(self, client: ModelClient) -> list[Item]:
        if isinstance(self.inputs, bytes):
            return [Item("body", raw=self.inputs)]
        return items_of(self.inputs, "inputs", client.codec.part)

    def client_parameters(self, client: ModelClient) -> Mapping[str, Any]:
        given = self.parameters or {}
        parameters = {OURS.get(name, name): value for name, value in given.items()}
        fields = {name: getattr(self, name) for name in PARAMETER_FIELDS}
        return {**DEFAULTS.get(client.task, {}), **fields, **parameters}

    def entries(self, job: ApiJob, result: Predictions) -> list[Any]:
        return pipeline_entries(job, result)

    def document(self, job: ApiJob, items: bytes) -> bytes:
        is_list = isinstance(self.inputs, list) or FORMATS[job.client.task].is_listed
        return super().document(job, items) if is_list else items


def pipeline_entries(job: ApiJob, result: Predictions) -> list[Any]:
    """Return a batch of predictions in the format of the pipeline for the model's task."""
    pipeline_format = FORMATS[job.client.task]
    return list(map(pipeline_format.convert, result.predictions))


class Embed(Pipeline, kw_only=True):
    """Embed each text, in the format of TEI."""

    tasks: ClassVar[tuple[str, ...]] = ("embedding",)


class Predict(ApiBody, kw_only=True):
    """Classify a text, a pair of texts, or a list of lists with one or two texts each, as TEI
    does."""

    inputs: str | list[str | list[str]]
    raw_scores: bool = False
    truncate: bool | None = None
    truncation_direction: Direction | None = None
    tasks: ClassVar[tuple[str, ...]] = ("text-classification",)

    @property
    def is_batch(self) -> bool:
        """Return whether `inputs` is a list of lists. A list of texts is a single instance."""
        if isinstance(self.inputs, str) or not self.inputs:
            return False
        return isinstance(self.inputs[0], list)

    def items(self, client: ModelClient) -> list[Item]:
        values: Any = self.inputs if self.is_batch else [self.inputs]
        return [Item("inputs", value=_instance(item.value)) for item in items_of(values, "inputs")]

    def client_parameters(self, client: ModelClient) -> Mapping[str, Any]:
        function = "none" if self.raw_scores else "auto"
        top_k = 1_000  # the parameter's maximum, because TEI returns all classes
        return {"top_k": top_k, "function_to_apply": function, "truncate": self.truncate}

    def entries(self, job: ApiJob, result: Predictions) -> list[Any]:
        return pipeline_entries(job, result)

    def document(self, job: ApiJob, items: bytes) -> bytes:
        return super().document(job, items) if self.is_batch else items


def _instance(value: Any) -> Any:
    """Convert a text, or a list of one or two texts, to an instance. Raise InvalidRequest if the
    list has another length."""
    if isinstance(value, str):
        return value
    if not 1 <= len(value) <= 2:
        raise InvalidRequest(f"the body, 'inputs': expected one or two texts, got {len(value)}")
    return dict(zip(("text", "text_pair"), value, strict=False))


class Sentences(Struct, forbid_unknown_fields=True):
    """A sentence, and the sentences to compare it with."""

    source_sentence: str
    sentences: Texts


class Similarity(ApiBody, kw_only=True):
    """Return the cosine similarity of a sentence and each of the others."""

    inputs: Sentences
    parameters: JsonObject | None = None
    tasks: ClassVar[tuple[str, ...]] = ("embedding",)

    def items(self, client: ModelClient) -> list[Item]:
        source = Item("inputs.source_sentence", value=self.inputs.source_sentence)
        return [source, *items_of(self.inputs.sentences, "inputs.sentences")]

    def client_parameters(self, client: ModelClient) -> Mapping[str, Any]:
        # the product of normalized vectors is their cosine similarity
        return {**(self.parameters or {}), "normalize": True}

    def entries(self, job: ApiJob, result: Predictions) -> list[Any]:
        vectors = [prediction["embedding"] for prediction in result.predictions]
        if result.batch.first == 0:  # the first instance is the source
            job.source = vectors.pop(0)
        return [float(job.source @ vector) for vector in vectors]
