"""Uses torch to export text encoders from the transformers library to ONNX. Only this module loads
these networks."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from build_engines.errors import BuildError
from build_engines.families.family import equal
from build_engines.families.text_checkpoint import modules_of
from build_engines.families.torch_export import (
    NEVER,
    Arrays,
    Example,
    Shape,
    check_answers,
    export_onnx,
    load,
)
from build_engines.weights import read_object
from clients._text.fill_mask import POSITIONS

LOADERS = {
    "embedding": "AutoModel",
    "fill-mask": "AutoModelForMaskedLM",
    "text-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "zero-shot-classification": "AutoModelForSequenceClassification",
    "text-ranking": "AutoModelForSequenceClassification",
}
# model types whose networks look up token types in the table of word embeddings
TYPES_AS_WORDS = ("xlm", "flaubert")
# networks that project the embedding of a text
TOWERS = ("CLIPModel", "CLIPTextModelWithProjection")
# pretraining weights that a checkpoint may contain beside those of the requested network
SPARE = (
    r"(\w+\.)*(embeddings\.position_ids$|pooler\.)|"
    r"(cls|lm_head|lm_predictions|mask_predictions|predictions|sop_classifier|"
    r"generator_\w+|discriminator_predictions|vocab_\w+|head|decoder)\."
)
# (rows, tokens) of the inputs on which the file is compared with the network
EXAMPLE_SIZES = ((1, 3), (3, 12), (2, 21))
LARGEST = 2**31 - 2**24  # maximum bytes of weights: protobuf's limit, minus room for the graph


def write_onnx(checkpoint: Path, task: str, pooling: str, path: Path) -> None:
    """Export the network in the folder to ONNX. Its inputs are input_ids, attention_mask,
    token_type_ids if the network has several types, and masked_lm_positions for fill-mask. Raise
    BuildError if the folder's weights do not fit the network for the task, if the network cannot be
    exported, if the file's outputs differ from the network's, or if padding changes them."""
    # the folders of the layers after the pooling
    dense = [folder for name, folder in modules_of(checkpoint) if name == "Dense"]
    head = _SentenceHead(pooling, dense)
    network = _Exported(load_network(checkpoint, task), task, head).eval()
    shapes: dict[str, Shape] = dict.fromkeys(network.names, ("batch", "sequence"))
    second = "sequence"  # the second dimension of the outputs for each token
    if task == "fill-mask":
        shapes[POSITIONS] = ("batch", "masks")
        second = "masks"
    export_onnx(network, network.example(2, 9), shapes, network.outputs, path, second)
    examples = [network.example(rows, tokens) for rows, tokens in EXAMPLE_SIZES]
    check_answers(network, path, examples, _equal_without_padding)
    _check_padding(network, examples)


def load_network(checkpoint: Path, task: str, largest: int = LARGEST) -> Any:
    """Load the network for a task with transformers. Raise BuildError if it cannot be loaded or
    exported, for example because its weights have more than `largest` bytes."""
    architecture = (read_object(checkpoint / "config.json").get("architectures") or [""])[0]
    loader = LOADERS[task]
    if architecture in TOWERS or architecture.endswith("EncoderModel"):
        loader = architecture  # AutoModel would drop the projection, or demand a decoder
    may_miss = r"(\w+\.)*pooler\." if task == "embedding" else NEVER
    network = load(getattr(transformers, loader), checkpoint, f"for {task}", may_miss, SPARE)
    if network.config.model_type in TYPES_AS_WORDS:
        raise BuildError(
            f"{checkpoint} is a {type(network).__name__}, which looks the types of tokens up among "
            "its words, and this build leaves them out: export it to ONNX with token_type_ids, and "
            "build that file (--client text --tokenizer FOLDER)"
        )
    if hasattr(network, "get_text_features") and architecture not in TOWERS:
        raise BuildError(
            f"{checkpoint} is a {architecture}: of networks of texts and images, only CLIP's can "
            "be served"
        )
    size = 4 * sum(weights.numel() for weights in network.parameters())
    if size > largest:
        raise BuildError(
            f"{checkpoint} has {size / 1e9:.1f} GB of weights in FP32, and one ONNX file holds 2"
        )
    return network


class _Exported(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Wraps a network so that it takes its tensors as positional arguments, and returns only what
    the client reads. `names` and `outputs` are the names of its inputs and outputs."""

    def __init__(self, network: Any, task: str, head: "_SentenceHead") -> None:
        super().__init__()
        self.network, self.task, self.head = network, task, head
        self.names = ["input_ids", "attention_mask"]
        accepted = inspect.signature(network.forward).parameters
        if "token_type_ids" in accepted and getattr(network.config, "type_vocab_size", 0) > 1:
            self.names.append("token_type_ids")
        if task == "fill-mask":
            self.names.append(POSITIONS)
            base = getattr(network, network.base_model_prefix)  # the network without its head
            base.register_forward_hook(self._only_masks)
        self.is_tower = type(network).__name__ in TOWERS
        if self.is_tower:
            self.outputs = ["sentence_embedding"]
        elif task == "embedding":
            self.outputs = ["last_hidden_state", "sentence_embedding"]
        else:
            self.outputs = ["logits"]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs = dict(zip(self.names, tensors, strict=True))
        if self.is_tower:
            return (self._tower(**inputs),)
        self.positions = inputs.pop(POSITIONS, None)  # for _only_masks
        output = self.network(**inputs, return_dict=True)
        if self.task == "question-answering":
            return (torch.stack((output.start_logits, output.end_logits), -1),)
        if self.task != "embedding":
            return (output.logits,)
        states = output.last_hidden_state
        return states, self.head(states, inputs["attention_mask"])

    def _tower(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Return the embedding of a text that CLIP compares with those of images."""
        if hasattr(self.network, "get_text_features"):
            return self.network.get_text_features(**inputs).pooler_output
        return self.network(**inputs).text_embeds

    def _only_masks(self, module: Any, inputs: Any, output: Any) -> Any:
        """Change the `output` of the network without its head: keep only the states at the masks,
        because the logits of all tokens would take 15.6 MB for a text of 128 tokens, with BERT's
        vocabulary."""
        states = output.last_hidden_state
        index = self.positions[..., None].expand(-1, -1, states.shape[-1])
        output.last_hidden_state = states.gather(1, index)
        return output

    def example(self, rows: int, length: int) -> dict[str, torch.Tensor]:
        """Return inputs with random tokens. The last row has padding."""
        config = self.network.config.get_text_config()
        padding = 0 if config.pad_token_id is None else config.pad_token_id
        torch.manual_seed(0)
        mask = torch.ones(rows, length, dtype=torch.int64)
        mask[-1, (length + 1) // 2 :] = 0
        # most networks have their padding token and other special ones below 5
        tokens = torch.randint(5, config.vocab_size, (rows, length))
        inputs = {
            "input_ids": tokens.masked_fill(mask == 0, padding),
            "attention_mask": mask,
            "token_type_ids": torch.zeros_like(mask),
            POSITIONS: torch.arange(2).repeat(rows, 1),  # as if the first two tokens were masks
        }
        return {name: inputs[name] for name in self.names}


class _SentenceHead(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Pools the tokens' states, and applies the dense layers that sentence-transformers stores in
    folders of their own."""

    def __init__(self, pooling: str, folders: Sequence[Path]) -> None:
        super().__init__()
        self.pooling = pooling
        layers: list[torch.nn.Module] = []
        for folder in folders:
            layers += _dense(folder)
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        kept = mask[..., None].to(states.dtype)
        if self.pooling == "cls":
            pooled = states[:, 0]
        elif self.pooling == "max":
            pooled = states.masked_fill(kept == 0, -1e9).max(1).values
        elif self.pooling == "last":
            last = mask.sum(1) - 1
            index = last[:, None, None].expand(-1, 1, states.shape[-1])
            pooled = states.gather(1, index)[:, 0]
        else:
            pooled = (states * kept).sum(1) / kept.sum(1)
        return self.layers(pooled)


def _dense(folder: Path) -> list[torch.nn.Module]:
    """Return the linear layer and the activation in the folder of a Dense module. Raise BuildError
    if model.safetensors is missing, or if the activation is not supported."""
    config = read_object(folder / "config.json")
    name = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    file = folder / "model.safetensors"
    if name not in ("Tanh", "Identity", "ReLU", "GELU", "Sigmoid") or not file.is_file():
        raise BuildError(
            f"{folder} has no model.safetensors, or its activation {name} is not known"
        )
    layer = torch.nn.Linear(config["in_features"], config["out_features"], config.get("bias", True))
    saved = load_file(file)
    layer.load_state_dict({key.removeprefix("linear."): saved[key].float() for key in saved})
    return [layer, getattr(torch.nn, name)()]


def _equal_without_padding(outputs: Arrays, wanted: Arrays, example: Example) -> bool:
    """Return whether the file's `outputs` equal the `wanted` ones, up to rounding. In outputs of
    the shape [rows, tokens, n], padding is ignored."""
    if POSITIONS in example:
        return equal(outputs, wanted)
    is_token = example["attention_mask"].numpy() > 0

    def without_padding(arrays: Arrays) -> Arrays:
        return [array[is_token] if array.ndim == 3 else array for array in arrays]

    return equal(without_padding(outputs), without_padding(wanted))


def _check_padding(network: _Exported, examples: Sequence[Example]) -> None:
    """Raise BuildError if padding changes the network's output for a text. Try both the network's
    padding token, with which clients pad, and 0, with which backends pad."""
    for example in (*examples, *map(_padded_with_0, examples)):
        with torch.inference_mode():
            padded = network(*example.values())
            alone = network(*_last_row_without_padding(example).values())
        # an output for each token has fewer columns if the row is alone
        pairs = zip(padded, alone, strict=True)
        rows = [batch[-1:, : row.shape[1]].numpy() for batch, row in pairs]
        if not equal(rows, [row.numpy() for row in alone]):
            raise BuildError(
                f"the answers of a {type(network.network).__name__} depend on the padding "
                "after a text, so texts cannot be batched: export it to ONNX, and build that: "
                "--client bert --tokenizer FOLDER --max-batch-size 1"
            )


def _last_row_without_padding(example: Example) -> dict[str, torch.Tensor]:
    """Return the last row of each input, the only row with padding, without this padding."""
    tokens = int(example["attention_mask"][-1].sum())
    row = {}
    for name, tensor in example.items():
        row[name] = tensor[-1:] if name == POSITIONS else tensor[-1:, :tokens]
    return row


def _padded_with_0(example: Example) -> dict[str, torch.Tensor]:
    return {**example, "input_ids": example["input_ids"] * example["attention_mask"]}
