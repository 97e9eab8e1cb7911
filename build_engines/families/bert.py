"""Writes BERT's encoder as an ONNX graph from its weights, without torch (Devlin et al. 2018,
arXiv:1810.04805)."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from safetensors.numpy import load_file

from build_engines.errors import BuildError, shortened
from build_engines.onnx_writer import Array, Graph

# added to the attention scores of padding, as in Google's BERT; the number fits FP16 too
MASKED_SCORE = -10000.0
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
# pretraining weights that many checkpoints still contain
SPARE = re.compile(r"embeddings\.position_ids$|pooler\.|cls\.")
POOLING = ("mean", "cls")


def is_plain(config: Mapping[str, Any], pooling: str) -> bool:
    """Return whether `bert_model` can write the network of this config.json with this pooling."""
    is_absolute = config.get("position_embedding_type", "absolute") == "absolute"
    is_gelu = config.get("hidden_act", "gelu") == "gelu"
    is_bert = config.get("model_type") == "bert" and not config.get("is_decoder")
    return is_bert and is_gelu and is_absolute and pooling in POOLING


def load_weights(checkpoint: Path) -> dict[str, Array]:
    """Return the checkpoint's tensors, named as in transformers' BertModel: without the prefix
    "bert.", and with LayerNorm.weight and .bias instead of .gamma and .beta."""
    tensors: dict[str, Array] = {}
    for file in sorted(checkpoint.glob("*.safetensors")):
        for key, tensor in load_file(file).items():
            key = key.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
            tensors[key.replace("LayerNorm.beta", "LayerNorm.bias")] = tensor
    return tensors


def bert_model(
    config: Mapping[str, Any], tensors: Mapping[str, Array], pooling: str
) -> onnx.ModelProto:
    """Return the ONNX model of a checkpoint. `config` is its config.json, `tensors` are its weights
    (of any float type), and `pooling` says how the tokens' states become an embedding: "mean" takes
    their mean, and "cls" takes the first one.

    The inputs input_ids, attention_mask and token_type_ids are INT64 [batch, sequence]. The outputs
    last_hidden_state [batch, sequence, hidden] and sentence_embedding [batch, hidden] are FP32. For
    a text of 512 tokens, BERT-base's outputs have 1.6 MB and 3 kB. Raise BuildError if a weight is
    missing, or if the checkpoint has one, other than SPARE, that the network does not use.
    """
    try:
        graph = _BertGraph(config, tensors)
        x, mask = graph.embeddings(), graph.mask()
        for index in range(config["num_hidden_layers"]):
            x = graph.layer(x, mask, f"encoder.layer.{index}")
    except KeyError as err:
        raise BuildError(f"the checkpoint has no {err}; was it saved for another task?") from err
    unused = [key for key in tensors.keys() - graph.used if not SPARE.match(key)]
    if unused:
        raise BuildError(
            "the checkpoint has weights that an embedding does not use: "
            f"{shortened(sorted(unused))}; was it saved for another task?"
        )
    pooled = graph.mean(x) if pooling == "mean" else graph.first(x)
    graph.add("Identity", x, output="last_hidden_state")
    graph.output("last_hidden_state", ["batch", "sequence", graph.hidden])
    graph.add("Identity", pooled, output="sentence_embedding")
    graph.output("sentence_embedding", ["batch", graph.hidden])
    return graph.model("bert")


class _BertGraph(Graph):
    """Builds the graph from standard operators of opset 17, in an order in which ONNX Runtime's
    optimizer recognizes and fuses attention, GELU and skip-LayerNorm."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        super().__init__()
        for name in INPUTS:
            self.input(name, "INT64", ["batch", "sequence"])
        self.tensors = tensors
        self.epsilon = config.get("layer_norm_eps", 1e-12)
        self.heads = config["num_attention_heads"]
        self.hidden = config["hidden_size"]
        self.used: set[str] = set()

    def tensor(self, key: str) -> Array:
        """Return a weight in FP32, and record it in `used`."""
        self.used.add(key)
        return self.tensors[key].astype(np.float32, copy=False)

    def weight(self, key: str) -> str:
        """Add a weight to the graph, and return its name there."""
        return self.constant(self.tensor(key), key)

    def linear(self, x: str, key: str) -> str:
        """Compute x·Wᵀ + b. W is stored transposed, because ONNX Runtime's fusions look for MatMul
        and Add."""
        weights = self.tensor(f"{key}.weight")
        product = self.add("MatMul", x, self.constant(weights.T, f"{key}.weight.T"))
        return self.add("Add", product, self.weight(f"{key}.bias"))

    def layer_norm(self, x: str, key: str) -> str:
        scale = self.weight(f"{key}.weight")
        bias = self.weight(f"{key}.bias")
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=self.epsilon)

    def gelu(self, x: str) -> str:
        """Compute x/2 · (1 + erf(x/√2)) (arXiv:1606.08415)."""
        scaled = self.add("Div", x, np.float32(math.sqrt(2.0)))
        erf = self.add("Erf", scaled)
        factor = self.add("Add", erf, np.float32(1.0))
        product = self.add("Mul", x, factor)
        return self.add("Mul", product, np.float32(0.5))

    def embeddings(self) -> str:
        """Compute the tokens' embeddings [batch, sequence, hidden], which are LayerNorm(word +
        token type + position)."""
        words = self.add("Gather", self.weight("embeddings.word_embeddings.weight"), "input_ids")
        types = self.add(
            "Gather", self.weight("embeddings.token_type_embeddings.weight"), "token_type_ids"
        )
        length = self.add("Shape", "input_ids", start=1, end=2)
        table = self.weight("embeddings.position_embeddings.weight")
        positions = self.add("Slice", table, [0], length, [0])
        without_positions = self.add("Add", words, types)
        total = self.add("Add", without_positions, positions)
        return self.layer_norm(total, "embeddings.LayerNorm")

    def mask(self) -> str:
        """Compute the numbers [batch, 1, 1, sequence] that are added to the attention scores. They
        are 0 for tokens, and MASKED_SCORE for padding."""
        mask = self.add("Unsqueeze", "attention_mask", [1])
        mask = self.add("Unsqueeze", mask, [2])
        one = np.float32(1.0)
        absent = self.add("Sub", one, self.cast(mask, TensorProto.FLOAT))
        return self.add("Mul", absent, np.float32(MASKED_SCORE))

    def split_heads(self, x: str, key: str, order: tuple[int, ...]) -> str:
        """Apply a linear layer, and cut its output into [batch, sequence, heads, hidden / heads],
        with the dimensions in this `order`."""
        shape = [0, 0, self.heads, self.hidden // self.heads]  # 0: as in the input
        split = self.add("Reshape", self.linear(x, key), shape)
        return self.add("Transpose", split, perm=order)

    def attention(self, x: str, mask: str, key: str) -> str:
        """Compute multi-head attention without its output layer. Input and output are [batch,
        sequence, hidden]."""
        query = self.split_heads(x, f"{key}.query", (0, 2, 1, 3))
        keys = self.split_heads(x, f"{key}.key", (0, 2, 3, 1))
        values = self.split_heads(x, f"{key}.value", (0, 2, 1, 3))
        scale = np.float32(math.sqrt(self.hidden // self.heads))
        products = self.add("MatMul", query, keys)
        scores = self.add("Add", self.add("Div", products, scale), mask)
        shares = self.add("Softmax", scores, axis=-1)
        mixed = self.add("MatMul", shares, values)
        ordered = self.add("Transpose", mixed, perm=(0, 2, 1, 3))
        return self.add("Reshape", ordered, [0, 0, self.hidden])

    def layer(self, x: str, mask: str, key: str) -> str:
        """Compute an encoder layer: attention, and a feed-forward part of two linear layers. The
        input of each of the two parts is added to its output, and the sum is normalized."""
        attended = self.attention(x, mask, f"{key}.attention.self")
        mixed = self.linear(attended, f"{key}.attention.output.dense")
        x = self.layer_norm(self.add("Add", mixed, x), f"{key}.attention.output.LayerNorm")
        wide = self.gelu(self.linear(x, f"{key}.intermediate.dense"))
        narrow = self.linear(wide, f"{key}.output.dense")
        return self.layer_norm(self.add("Add", narrow, x), f"{key}.output.LayerNorm")

    def mean(self, x: str) -> str:
        """Compute the mean of the tokens' states, without those of padding."""
        mask = self.cast("attention_mask", TensorProto.FLOAT)
        row = self.add("Unsqueeze", mask, [1])
        total = self.add("MatMul", row, x)
        count = self.add("ReduceSum", mask, [1], keepdims=1)
        total = self.add("Squeeze", total, [1])
        return self.add("Div", total, self.add("Max", count, np.float32(1.0)))

    def first(self, x: str) -> str:
        return self.add("Gather", x, 0, axis=1)
