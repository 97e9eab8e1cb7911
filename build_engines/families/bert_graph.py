"""A plain BERT checkpoint -> an ONNX graph, written with onnx's helpers and without torch.

BERT as in Devlin et al. 2018 (arXiv:1810.04805). The tensors have the names in which transformers' BertModel
and its BertFor… save them. The graph uses only standard operators of opset 17, in an
order in which ONNX Runtime's optimiser recognises and fuses attention, GELU and skip-LayerNorm.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from build_engines.errors import BuildError
from build_engines.families.onnx_graph import Graph

Array = NDArray[Any]

MASKED_SCORE = -10000.0  # what Google's BERT adds to the scores of padding; FP16 holds it as well
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_SPARE = re.compile(r"embeddings\.position_ids$|pooler\.|cls\.")  # of BERT's first training, in many checkpoints
POSITIONS = "masked_lm_positions"  # the name that Google's run_pretraining.py gives it


SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size")


@dataclass(frozen=True)
class BertShape:
    """The values from a checkpoint's config.json that the graph needs."""

    layers: int
    heads: int
    hidden: int
    vocabulary: int
    epsilon: float

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> "BertShape":
        """Read them; raise BuildError if one is missing."""
        if missing := [key for key in SIZES if key not in config]:
            raise BuildError(f"config.json has no {missing[0]}")
        return cls(
            layers=config["num_hidden_layers"],
            heads=config["num_attention_heads"],
            hidden=config["hidden_size"],
            vocabulary=config["vocab_size"],
            epsilon=config.get("layer_norm_eps", 1e-12),
        )


class _Graph(Graph):
    """The graph of a checkpoint with these tensors."""

    def __init__(self, tensors: Mapping[str, Array], epsilon: float) -> None:
        super().__init__()
        self.tensors, self.epsilon = tensors, epsilon
        self.used: set[str] = set()

    def floats(self, value: float) -> str:
        return self.constant(f"float_{value}", np.array(value, np.float32))

    def integers(self, *values: int) -> str:
        return self.constant(f"int64_{'_'.join(map(str, values))}", np.array(values, np.int64))

    def weight(self, key: str) -> str:
        return self.constant(key, self.tensor(key).astype(np.float32, copy=False))

    def tensor(self, key: str) -> Array:
        if key not in self.tensors:
            raise BuildError(f"the checkpoint has no tensor '{key}'; was it saved for another task?")
        self.used.add(key)
        return self.tensors[key]

    def check_all_used(self, task: str) -> None:
        """Raises BuildError where the checkpoint has more than the task and what it was first trained with."""
        left = sorted(key for key in self.tensors if key not in self.used and not _SPARE.match(key))
        if left:
            raise BuildError(
                f"the checkpoint has weights that the task {task} does not use: {', '.join(left[:3])}"
                f"{f' and {len(left) - 3} more' if len(left) > 3 else ''}; was it saved for another task?"
            )

    def affine(self, x: str, matrix: str, bias: str) -> str:
        """x·Wᵀ + b for a two-dimensional x, with W as in the checkpoint."""
        return self.add("Gemm", x, matrix, bias, transB=1)

    def linear(self, x: str, key: str) -> str:
        """x·Wᵀ + b; W is stored transposed, because ONNX Runtime's fusions look for MatMul and Add."""
        matrix = self.tensor(f"{key}.weight").astype(np.float32, copy=False)
        product = self.add("MatMul", x, self.constant(f"{key}.weight.T", matrix.T))
        return self.add("Add", product, self.weight(f"{key}.bias"))

    def layer_norm(self, x: str, key: str) -> str:
        scale, bias = self.weight(f"{key}.weight"), self.weight(f"{key}.bias")
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=self.epsilon)


def _gelu(graph: _Graph, x: str) -> str:
    """x/2 · (1 + erf(x/√2)) (arXiv:1606.08415)."""
    erf = graph.add("Erf", graph.add("Div", x, graph.floats(math.sqrt(2.0))))
    return graph.add("Mul", graph.add("Mul", x, graph.add("Add", erf, graph.floats(1.0))), graph.floats(0.5))


def _embeddings(graph: _Graph) -> str:
    """LayerNorm(word + token type + position): [batch, sequence, hidden]."""
    words = graph.add("Gather", graph.weight("embeddings.word_embeddings.weight"), "input_ids")
    types = graph.add("Gather", graph.weight("embeddings.token_type_embeddings.weight"), "token_type_ids")
    length = graph.add("Shape", "input_ids", start=1, end=2)
    table = graph.weight("embeddings.position_embeddings.weight")
    positions = graph.add("Slice", table, graph.integers(0), length, graph.integers(0))
    total = graph.add("Add", graph.add("Add", words, types), positions)
    return graph.layer_norm(total, "embeddings.LayerNorm")


def _mask(graph: _Graph) -> str:
    """attention_mask -> what is added to the scores, [batch, 1, 1, sequence]: 0, or -10000 for padding."""
    mask = graph.add("Unsqueeze", "attention_mask", graph.integers(1))
    mask = graph.add("Unsqueeze", mask, graph.integers(2))
    absent = graph.add("Sub", graph.floats(1.0), graph.add("Cast", mask, to=TensorProto.FLOAT))
    return graph.add("Mul", absent, graph.floats(MASKED_SCORE))


def _heads(graph: _Graph, x: str, key: str, shape: BertShape, order: tuple[int, ...]) -> str:
    split = graph.integers(0, 0, shape.heads, shape.hidden // shape.heads)
    return graph.add("Transpose", graph.add("Reshape", graph.linear(x, key), split), perm=order)


def _attention(graph: _Graph, x: str, mask: str, key: str, shape: BertShape) -> str:
    """Multi-head attention before its output layer: [batch, sequence, hidden] -> the same."""
    query = _heads(graph, x, f"{key}.query", shape, (0, 2, 1, 3))
    keys = _heads(graph, x, f"{key}.key", shape, (0, 2, 3, 1))
    values = _heads(graph, x, f"{key}.value", shape, (0, 2, 1, 3))
    scale = graph.floats(math.sqrt(shape.hidden // shape.heads))
    scores = graph.add("Add", graph.add("Div", graph.add("MatMul", query, keys), scale), mask)
    mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), values)
    return graph.add("Reshape", graph.add("Transpose", mixed, perm=(0, 2, 1, 3)), graph.integers(0, 0, shape.hidden))


def _layer(graph: _Graph, x: str, mask: str, key: str, shape: BertShape) -> str:
    mixed = graph.linear(_attention(graph, x, mask, f"{key}.attention.self", shape), f"{key}.attention.output.dense")
    x = graph.layer_norm(graph.add("Add", mixed, x), f"{key}.attention.output.LayerNorm")
    wide = _gelu(graph, graph.linear(x, f"{key}.intermediate.dense"))
    return graph.layer_norm(graph.add("Add", graph.linear(wide, f"{key}.output.dense"), x), f"{key}.output.LayerNorm")


def _encoder(graph: _Graph, shape: BertShape) -> str:
    x, mask = _embeddings(graph), _mask(graph)
    for index in range(shape.layers):
        x = _layer(graph, x, mask, f"encoder.layer.{index}", shape)
    return x


def _states(graph: _Graph, x: str, shape: BertShape, pooling: str) -> list[onnx.ValueInfoProto]:
    """Of a text of 512 tokens the states are 1.6 MB in BERT-base, what becomes of them 3 kB."""
    pooled = POOLING[pooling](graph, x)
    return [
        _output(graph, x, "last_hidden_state", ["batch", "sequence", shape.hidden]),
        _output(graph, pooled, "sentence_embedding", ["batch", shape.hidden]),
    ]


def _mean(graph: _Graph, x: str) -> str:
    mask = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    total = graph.add("MatMul", graph.add("Unsqueeze", mask, graph.integers(1)), x)
    count = graph.add("ReduceSum", mask, graph.integers(1), keepdims=1)
    return graph.add("Div", graph.add("Squeeze", total, graph.integers(1)), graph.add("Max", count, graph.floats(1.0)))


def _first(graph: _Graph, x: str) -> str:
    return graph.add("Gather", x, graph.constant("first_token", np.array(0, np.int64)), axis=1)


POOLING = {"mean": _mean, "cls": _first}


def _decoder(graph: _Graph) -> str:
    """The matrix [vocabulary, hidden] of the language-model head; the word embeddings if they are tied."""
    own, words = "cls.predictions.decoder.weight", "embeddings.word_embeddings.weight"
    tied = own not in graph.tensors or np.array_equal(graph.tensor(own), graph.tensor(words))
    return graph.weight(words if tied else own)


def _masked_lm_logits(graph: _Graph, x: str, shape: BertShape) -> onnx.ValueInfoProto:
    """Logits [batch, masks, vocabulary] at the requested positions.

    Callers need only a few. The logits of all 128 tokens would be 15.6 MB per text and take a fifth of the time.
    """
    at = graph.add("Unsqueeze", POSITIONS, graph.integers(2))
    x = graph.linear(graph.add("GatherND", x, at, batch_dims=1), "cls.predictions.transform.dense")
    x = graph.layer_norm(_gelu(graph, x), "cls.predictions.transform.LayerNorm")
    rows = graph.add("Reshape", x, graph.integers(-1, shape.hidden))
    own_bias = "cls.predictions.decoder.bias"
    bias = graph.weight(own_bias if own_bias in graph.tensors else "cls.predictions.bias")
    logits = graph.affine(rows, _decoder(graph), bias)
    full = graph.add("Concat", graph.add("Shape", POSITIONS), graph.integers(shape.vocabulary), axis=0)
    return _output(graph, graph.add("Reshape", logits, full), "logits", ["batch", "masks", shape.vocabulary])


def _class_logits(graph: _Graph, x: str, shape: BertShape) -> onnx.ValueInfoProto:
    """Logits [batch, labels]: [CLS] -> pooler -> tanh -> classifier."""
    first = _first(graph, x)
    pooler = graph.weight("pooler.dense.weight"), graph.weight("pooler.dense.bias")
    pooled = graph.add("Tanh", graph.affine(first, *pooler))
    logits = graph.affine(pooled, graph.weight("classifier.weight"), graph.weight("classifier.bias"))
    return _output(graph, logits, "logits", ["batch", graph.tensor("classifier.bias").shape[0]])


def _token_logits(graph: _Graph, x: str, shape: BertShape) -> onnx.ValueInfoProto:
    """Logits [batch, sequence, labels]."""
    return _every_token(graph, x, "classifier")


def _span_logits(graph: _Graph, x: str, shape: BertShape) -> onnx.ValueInfoProto:
    """Logits [batch, sequence, 2]: of each token to be the first of an answer, and the last."""
    return _every_token(graph, x, "qa_outputs")


def _every_token(graph: _Graph, x: str, key: str) -> onnx.ValueInfoProto:
    dims: list[str | int] = ["batch", "sequence", graph.tensor(f"{key}.bias").shape[0]]
    return _output(graph, graph.linear(x, key), "logits", dims)


def _output(graph: _Graph, x: str, name: str, dims: list[str | int]) -> onnx.ValueInfoProto:
    graph.add("Identity", x, output=name)
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


HEADS = {
    "fill-mask": _masked_lm_logits,
    "text-classification": _class_logits,
    "token-classification": _token_logits,
    "question-answering": _span_logits,
    "zero-shot-classification": _class_logits,
    "text-ranking": _class_logits,
}


def plain_keys(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors with this module's names: without "bert.", and LayerNorm's called weight and bias."""

    def plain(key: str) -> str:
        key = key.removeprefix("bert.")
        return key.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")

    return {plain(key): tensor for key, tensor in tensors.items()}


def bert_model(
    config: Mapping[str, Any], tensors: Mapping[str, Array], task: str, pooling: str = "mean"
) -> onnx.ModelProto:
    """The ONNX model of a checkpoint: `config` is its config.json, `tensors` its weights (any float type), `pooling`
    what an embedding is made from: the tokens' mean, or the first of them (cls).

    Inputs INT64 [batch, sequence]: input_ids, attention_mask, token_type_ids; for fill-mask also
    masked_lm_positions [batch, masks]. Outputs FP32, by task: last_hidden_state [batch, sequence, hidden] and
    sentence_embedding [batch, hidden], or logits [batch, masks, vocabulary], [batch, labels], [batch, sequence, labels
    or 2]. Raises BuildError.
    """
    shape = BertShape.read(config)
    graph = _Graph(plain_keys(tensors), shape.epsilon)
    x = _encoder(graph, shape)
    outputs = _states(graph, x, shape, pooling) if task == "embedding" else [HEADS[task](graph, x, shape)]
    graph.check_all_used(task)
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "sequence"]) for n in INPUTS]
    if task == "fill-mask":
        inputs.append(helper.make_tensor_value_info(POSITIONS, TensorProto.INT64, ["batch", "masks"]))
    return graph.model("bert", inputs, outputs)
