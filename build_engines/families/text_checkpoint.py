"""Reads folders that the transformers or sentence-transformers library saved: their task, pooling
and tokenizer."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError
from build_engines.weights import CHECKPOINT, Weights, read_json, read_object
from clients._text.tokenizer import TextTokenizer, load_with_transformers
from clients.text import TASKS
from serving.errors import ConfigError

PROMPTS, MODULES = "config_sentence_transformers.json", "modules.json"
TOKENIZER_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    PROMPTS,
)
HEADS = {  # end of a network's class name in transformers -> its tasks, the default first
    "ForMaskedLM": ("fill-mask",),
    "ForSequenceClassification": (
        "text-classification",
        "zero-shot-classification",
        "text-ranking",
    ),
    "ForTokenClassification": ("token-classification",),
    "ForQuestionAnswering": ("question-answering",),
}
TO_TENSORS = "export it to ONNX and build that without --client, to serve tensors"
ENCODERS = ("Model", "TextModelWithProjection")  # ends of the class names of encoders
# ends of class names that look like an encoder's but are not, such as GPT2LMHeadModel
GENERATORS = ("HeadModel", "HeadsModel")
POOLING = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
MODULE_ORDER = re.compile(r"Transformer, Pooling(, Dense)*(, Normalize)?")
CROSS_ENCODER_ORDER = re.compile("Transformer")
EXAMPLES: dict[str, Any] = {
    "embedding": "The quick brown fox jumps over the lazy dog.",
    "fill-mask": "The capital of France is {mask}.",
    "text-classification": "What a wonderful day.",
    "token-classification": "Clara Schumann played in Vienna and in Paris.",
    "question-answering": {
        "question": "Where did she play?",
        "context": "Clara Schumann played in Vienna.",
    },
    "zero-shot-classification": {
        "text": "The train is late again.",
        "candidate_labels": ["travel", "cooking"],
    },
    "text-ranking": {
        "query": "When does the train leave?",
        "documents": ["The soup is hot.", "The train leaves at nine."],
    },
}


def is_text(weights: Weights) -> bool:
    """Return whether the weights are a checkpoint's folder that has a tokenizer's file or
    modules.json, or whose network is a BERT."""
    if weights.has("tokenizer.json", "tokenizer_config.json", "vocab.txt", MODULES):
        return True
    return weights.kind == CHECKPOINT and weights.config.get("model_type") == "bert"


def has_safetensors(checkpoint: Path) -> bool:
    """Return True if the folder has *.safetensors, and False if it has only pytorch_model*.bin.
    Raise BuildError if it has neither."""
    if any(checkpoint.glob("*.safetensors")):
        return True
    if any(checkpoint.glob("pytorch_model*.bin")):
        return False
    raise BuildError(
        f"there is no *.safetensors in {checkpoint}; transformers' from_pretrained and "
        "save_pretrained turn an older checkpoint into one"
    )


def task_of(checkpoint: Path, config: Mapping[str, Any], asked: str) -> str:
    """Return the task `asked` or, if it is "", the default task of the network in config.json.
    Raise BuildError if there is no such task, if the network does not support it, or if no task is
    `asked` and the network has no default."""
    if asked and asked not in TASKS:
        raise BuildError(f"the task {asked!r} is not one of: {', '.join(TASKS)}")
    name = str((config.get("architectures") or ["network of no name"])[0])
    description = f"config.json says that it is a {name}"
    if config.get("is_encoder_decoder"):
        raise BuildError(
            f"{description}, an encoder with a decoder, which no client serves: {TO_TENSORS}"
        )
    tasks = _tasks_of(checkpoint, config, name)
    if not asked and not tasks:
        raise BuildError(
            f"{description}, which has none of the tasks {', '.join(TASKS)}: name one with --task; "
            "for embedding its encoder is built, without what the network adds to it"
        )
    if asked and tasks and asked not in (*tasks, "embedding"):
        raise BuildError(f"{description}: its task is {' or '.join(tasks)}, not {asked}")
    return asked or tasks[0]


def _tasks_of(checkpoint: Path, config: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the tasks of a network whose class is `name`, the default first, or () if none is
    known."""
    is_cross_encoder = _is_cross_encoder(checkpoint, config)
    if (checkpoint / MODULES).is_file() and not is_cross_encoder:
        return ("embedding",)
    for end, tasks in HEADS.items():
        if name.endswith(end):
            has_one_score = len(config.get("id2label", ())) == 1
            # a CrossEncoder with several scores sorts pairs of texts into classes
            if is_cross_encoder and has_one_score and "text-ranking" in tasks:
                others = (task for task in tasks if task != "text-ranking")
                return ("text-ranking", *others)
            return tasks
    is_encoder = name.endswith(ENCODERS) and not name.endswith(GENERATORS)
    return ("embedding",) if is_encoder else ()


def _is_cross_encoder(checkpoint: Path, config: Mapping[str, Any]) -> bool:
    """Return whether sentence-transformers' CrossEncoder wrote the folder. Depending on the
    version, config_sentence_transformers.json or config.json says so."""
    return (
        read_object(checkpoint / PROMPTS).get("model_type") == "CrossEncoder"
        or "sbert_ce_default_activation_function" in config
        or "activation_fn" in config.get("sentence_transformers", {})
    )


def sentence_settings(checkpoint: Path, task: str) -> dict[str, str]:
    """Return the client's settings that follow from sentence-transformers' files. The pooling is
    not among them, because it is part of the network. Raise BuildError for an unknown module, for
    modules in an unknown order, or for a default prompt that the task does not support."""
    settings = {}
    if task == "embedding":
        order, buildable = MODULE_ORDER, "Transformer, Pooling, any number of Dense, Normalize"
    else:
        order, buildable = CROSS_ENCODER_ORDER, "Transformer alone"
    if (checkpoint / MODULES).is_file():
        modules = [name for name, _ in modules_of(checkpoint)]
        if not order.fullmatch(", ".join(modules)):
            raise BuildError(
                f"{MODULES} has the modules {', '.join(modules) or 'none'}, and for {task} the "
                f"build supports {buildable}: export the network to ONNX, and build that"
            )
        if task == "embedding" and "Normalize" not in modules:
            settings["normalize"] = "false"
    if task != "embedding" and read_object(checkpoint / PROMPTS).get("default_prompt_name"):
        raise BuildError(f"{PROMPTS} has a default_prompt_name, which {task} does not support")
    length = _sentence_config(checkpoint).get("max_seq_length")
    if length:
        settings["max_length"] = str(length)
    return settings


def _sentence_config(checkpoint: Path) -> Any:
    """Return the settings in sentence_*_config.json, such as max_seq_length, or {} without this
    file. sentence-transformers names it after the kind of network."""
    files = sorted(checkpoint.glob("sentence_*_config.json"))
    return read_object(files[0]) if files else {}


def modules_of(checkpoint: Path) -> list[tuple[str, Path]]:
    """Return the class name and the folder of each module in modules.json, in the order in which
    they run, or [] without this file."""
    modules = []
    for module in read_json(checkpoint / MODULES) or ():
        name = str(module["type"]).rpartition(".")[2]
        modules.append((name, checkpoint / str(module.get("path", ""))))
    return modules


def pooling_of(checkpoint: Path) -> str:
    """Return the pooling: mean (the default), cls, max or last. Raise BuildError for any other, for
    a combination, or if the pooling leaves out the tokens of prompts."""
    folders = dict(modules_of(checkpoint))
    config = read_object(folders.get("Pooling", checkpoint / "1_Pooling") / "config.json")
    if "pooling_mode" in config:
        chosen = [str(config["pooling_mode"])]
    else:  # older folders have {"pooling_mode_mean_tokens": true, …}
        modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
        chosen = [re.sub("^pooling_mode_|_tokens?$", "", key) for key in modes] or ["mean"]
    if len(chosen) > 1 or chosen[0] not in POOLING:
        raise BuildError(
            f"its pooling is {' and '.join(chosen)}; supported is one of {', '.join(POOLING)}"
        )
    has_prompts = bool(read_object(checkpoint / PROMPTS).get("prompts"))
    if has_prompts and config.get("include_prompt") is False:
        raise BuildError(
            "its pooling leaves the prompt out (include_prompt), which is not supported"
        )
    return POOLING[chosen[0]]


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files, and config.json. If tokenizer.json is missing, let transformers
    write it. Raise BuildError if that fails."""
    target.mkdir(exist_ok=True)
    if not (source / "tokenizer.json").is_file():
        try:
            load_with_transformers(source).save_pretrained(target)
        except ConfigError as err:
            raise BuildError(str(err)) from err
    for name in TOKENIZER_FILES:
        if (source / name).exists() and not (target / name).exists():
            shutil.copyfile(source / name, target / name)
    # config.json of a network for texts and images: keep only the configuration of the text part
    text_config = read_object(source / "config.json").get("text_config")
    if text_config:
        (target / "config.json").write_text(json.dumps(text_config, indent=2))


def _load_tokenizer(folder: Path) -> TextTokenizer:
    """Load the tokenizer in `folder`, with the model's own limit of tokens. Raise BuildError if
    that fails."""
    try:
        return TextTokenizer(folder, max_length=0)
    except ConfigError as err:
        raise BuildError(str(err)) from err


def check_tokenizer(folder: Path, checkpoint: Path) -> TextTokenizer:
    """Return the tokenizer in `folder`. Raise BuildError if it cannot be loaded, or if it does not
    fit the `checkpoint`."""
    tokenizer = _load_tokenizer(folder)
    size = tokenizer.tokenizer.get_vocab_size()
    network_size = tokenizer.config.get("vocab_size")
    if network_size and size > network_size:
        raise BuildError(
            f"its tokenizer has {size} tokens, and the network knows {network_size}: they do not "
            "belong together"
        )
    should_lower = _sentence_config(checkpoint).get("do_lower_case")
    is_lowering = tokenizer.tokenizer.encode("ABC").ids == tokenizer.tokenizer.encode("abc").ids
    if should_lower and not is_lowering:
        raise BuildError(
            "its sentence_*_config.json says do_lower_case, but its tokenizer distinguishes "
            "upper and lower case"
        )
    return tokenizer


def write_example(folder: Path, task: str) -> None:
    """Write example.txt, or example.json if an instance of the task is more than one text. The
    tokenizer must already be in the folder. Raise BuildError if it cannot be loaded."""
    tokenizer = _load_tokenizer(folder / "tokenizer")
    example = EXAMPLES[task]
    if isinstance(example, str):
        text = example.replace("{mask}", tokenizer.mask)
        (folder / "example.txt").write_text(f"{text}\n", encoding="utf-8")
    else:
        (folder / "example.json").write_text(f"{json.dumps(example)}\n", encoding="utf-8")
