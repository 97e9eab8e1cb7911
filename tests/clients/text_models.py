"""Makes small random checkpoints of transformers, and model folders that the text client serves
without Triton."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from build_engines.request import Request
from clients.base import Model, TensorSpec
from clients.text import Client
from tests.build_engines.models import exported

WORDS = (
    "the a cat dog fox sat ran on under mat rug moon sun is was red blue big ##s ##ly quick . , !"
)
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
TEXTS = [
    "the cat sat on the mat.",
    "A dog!",
    "quickly the big red fox ran under the moons, the sun is blue",
    "",
]
MASKED = ["the [MASK] sat on the mat.", "The [MASK] ran, the [MASK] sat on [MASK] rug!", "[MASK]"]
LIMIT = 24
HEADS = {
    "embedding": "Model",
    "fill-mask": "ForMaskedLM",
    "text-classification": "ForSequenceClassification",
    "token-classification": "ForTokenClassification",
    "question-answering": "ForQuestionAnswering",
    "zero-shot-classification": "ForSequenceClassification",
    "text-ranking": "ForSequenceClassification",
}
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": LIMIT,
    "initializer_range": 0.3,
}
DISTIL = {
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 64,
    "max_position_embeddings": LIMIT,
}
# positions start after the id of the padding token
FROM_PADDING = {"pad_token_id": 1, "max_position_embeddings": LIMIT + 2}
DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 8,
    "type_vocab_size": 0,
}
MODERN = {"global_attn_every_n_layers": 2, "local_attention": 8, "initializer_cutoff_factor": 3.0}
# model_type -> (transformers' name, tokenizer, configuration)
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("Bert", "pieces", SMALL),
    "distilbert": ("DistilBert", "pieces", DISTIL | {"initializer_range": 0.3}),
    "electra": ("Electra", "pieces", SMALL | {"embedding_size": 16}),
    "mpnet": ("MPNet", "roberta pieces", SMALL | FROM_PADDING),
    "roberta": ("Roberta", "bytes", SMALL | FROM_PADDING | {"type_vocab_size": 1}),
    "xlm-roberta": ("XLMRoberta", "unigram", SMALL | FROM_PADDING | {"type_vocab_size": 1}),
    "albert": ("Albert", "albert unigram", SMALL | {"embedding_size": 16}),
    "deberta-v2": ("DebertaV2", "albert unigram", SMALL | DEBERTA),
    "modernbert": ("ModernBert", "bytes", SMALL | MODERN),
}


def save_checkpoint(folder: Path, task: str, family: str = "bert", **changes: Any) -> Path:
    """Save a small random checkpoint with its tokenizer, as save_pretrained writes them."""
    torch.manual_seed(0)
    name, kind, values = FAMILIES[family]
    tokenizer = save_tokenizer(folder, kind, changes.get("max_position_embeddings", LIMIT))
    special = {
        key: tokenizer.convert_tokens_to_ids(tokenizer.special_tokens_map[key[:-3]])
        for key in SPECIAL
    }
    fields = {"vocab_size": len(tokenizer), **special, **values, **changes}
    config = getattr(transformers, f"{name}Config")(**fields)
    network = getattr(transformers, name + HEADS[task])(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    network.save_pretrained(folder)
    return folder


SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
BERTS = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
ROBERTAS = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}


def save_tokenizer(folder: Path, kind: str, limit: int = LIMIT) -> Any:
    """Save and return a tokenizer with the words above, of one of the kinds that encoders use. It
    cuts texts to `limit` tokens."""
    if kind == "pieces":
        vocabulary = {word: index for index, word in enumerate(VOCABULARY)}
        ends = {"bos_token": "[CLS]", "eos_token": "[SEP]"}
        tokenizer = transformers.BertTokenizer(vocab=vocabulary, model_max_length=limit, **ends)
    else:
        marks = BERTS if kind.startswith("albert") else ROBERTAS
        named = {f"{name}_token": token for name, token in marks.items()}
        named |= {"bos_token": marks["cls"], "eos_token": marks["sep"]}
        trained = _trained(kind, marks)
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=trained, model_max_length=limit, **named
        )
    tokenizer.save_pretrained(folder)
    return tokenizer


def _trained(kind: str, marks: Mapping[str, str]) -> Tokenizer:
    """Return a trained tokenizer with its normalizer, and with the `marks` that surround a text and
    a pair."""
    special = list(marks.values())
    texts = [" ".join(WORDS.replace("#", "").split() * 3), *TEXTS]
    trainer: Any
    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=320, special_tokens=special, initial_alphabet=alphabet
        )
    elif kind.endswith("pieces"):
        tokenizer = Tokenizer(models.WordPiece(unk_token=marks["unk"]))
        tokenizer.normalizer, tokenizer.pre_tokenizer = (
            normalizers.BertNormalizer(),
            pre_tokenizers.BertPreTokenizer(),
        )
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=80, special_tokens=special)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer, tokenizer.decoder = (
            pre_tokenizers.Metaspace(),
            decoders.Metaspace(),
        )
        trainer = trainers.UnigramTrainer(
            vocab_size=80, special_tokens=special, unk_token=marks["unk"]
        )
    tokenizer.train_from_iterator(texts * 4, trainer)
    cls, sep = ((marks[name], tokenizer.token_to_id(marks[name]) or 0) for name in ("cls", "sep"))
    if marks is ROBERTAS:
        tokenizer.post_processor = processors.RobertaProcessing(sep, cls, add_prefix_space=False)
    else:
        pair = f"{cls[0]}:0 $A:0 {sep[0]}:0 $B:1 {sep[0]}:1"
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{cls[0]} $A {sep[0]}", pair, [cls, sep]
        )
    return tokenizer


class Served:
    """Serves a model folder with its client, and with ONNX Runtime instead of Triton."""

    def __init__(self, folder: Path, **settings: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        path = str(folder / "1" / "model.onnx")
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        inputs, outputs = map(_specs, (self.session.get_inputs(), self.session.get_outputs()))
        self.client = Client(
            Model("bert", folder, inputs, outputs, 32, {"client": "bert", **settings})
        )

    def predict(self, texts: Sequence[Any], **changes: Any) -> list[Any]:
        parameters = self.client.read_parameters(changes)
        tensors = self.client.prepare(texts, parameters)
        return self.client.postprocess(self.infer(tensors), tensors, texts, parameters)

    def infer(self, tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        names = [value.name for value in self.session.get_inputs()]
        asked = list(self.client.outputs)
        return dict(
            zip(
                asked, self.session.run(asked, {name: tensors[name] for name in names}), strict=True
            )
        )


def _specs(values: Any) -> tuple[TensorSpec, ...]:
    types = {"tensor(int32)": "INT32", "tensor(int64)": "INT64", "tensor(float)": "FP32"}
    return tuple(
        TensorSpec(
            v.name, types[v.type], tuple(d if isinstance(d, int) else -1 for d in v.shape[1:])
        )
        for v in values
    )


def serve(
    tmp: Path, task: str, changes: Mapping[str, Any] | None = None, family: str = "bert", **own: str
) -> Served:
    """Save a checkpoint in `tmp`/checkpoint, and build a model folder from it. Return the folder,
    served by its client."""
    checkpoint = save_checkpoint(tmp / "checkpoint", task, family, **(changes or {}))
    spec = exported(Request("own", client="bert", task=task), checkpoint, tmp / "bert")
    return Served(tmp / "bert", **{**spec.settings, "pad_to_multiple_of": "1", **own})
