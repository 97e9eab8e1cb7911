"""Tests tokenizers without tokenizer.json: AutoTokenizer reads their vocabulary, or the folder is
refused with an explanation."""

import json
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models, pre_tokenizers, trainers

from clients._text.tokenizer import TextTokenizer
from serving.errors import ConfigError
from tests.support.harness import ROOT

pytestmark = pytest.mark.full

LENGTH, STRIDE = 48, 8
MARKS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
TEXT = (
    "the quick Brown fox jumps over 12345 lazy dogs' naïve café, can't stop? [MASK] <mask> </s> -- "
)
SCRIPTS = "äßÇñøŁёжЖλόγοςעבריתالعربيةहिन्दीไทย日本語テキスト中文分词한국어😀👩‍👩‍👧🏳️‍🌈"
SCRIPTS += "\u0301e\u0301ﬁⅧ½\u200b\u00a0\t\n\x00\ufffd𝕏𝔘"
BUNDLED = ROOT / "model_repository/bert/tokenizer"


def texts() -> list[str]:
    """Return 200 texts: empty texts, words, texts in all scripts, and some texts that are longer
    than a window."""
    chance = random.Random(7)
    lines = ["", " ", "\n", "a", "[MASK]", "<mask>", SCRIPTS, "x" * 5000, "word " * 900, "日" * 600]
    while len(lines) < 200:
        words = [chance.choice(TEXT.split()) for _ in range(chance.randrange(1, 30))]
        words += [
            "".join(chance.choices(SCRIPTS, k=chance.randrange(1, 12)))
            for _ in range(chance.randrange(8))
        ]
        chance.shuffle(words)
        lines.append(chance.choice(["", "  "]) + chance.choice([" ", "", "  "]).join(words))
    return lines


def write(folder: Path, **files: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(files))


def bert(folder: Path) -> None:
    write(folder, model_type="bert")
    shutil.copyfile(BUNDLED / "vocab.txt", folder / "vocab.txt")


def mpnet(folder: Path) -> None:
    write(folder, model_type="mpnet")
    words = (BUNDLED / "vocab.txt").read_text().splitlines()
    (folder / "vocab.txt").write_text("\n".join([*MARKS, *words]))


def roberta(folder: Path) -> None:
    write(folder, model_type="roberta")
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([TEXT, SCRIPTS] * 3, vocab_size=400, special_tokens=MARKS)
    tokenizer.save_model(str(folder))


def clip(folder: Path) -> None:
    write(folder, model_type="clip")
    tokenizer = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = [
        character + suffix
        for character in pre_tokenizers.ByteLevel.alphabet()
        for suffix in ("", "</w>")
    ]
    marks = ["<|startoftext|>", "<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=800, special_tokens=[*marks, *alphabet], end_of_word_suffix="</w>"
    )
    tokenizer.train_from_iterator([TEXT.lower()] * 3, trainer)
    tokenizer.model.save(str(folder))


FAMILIES = (bert, mpnet, roberta, clip)


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Fail on every DNS look-up and every connection. The test expects none."""
    tried: list[Any] = []

    def refuse(*arguments: Any, **_named: Any) -> None:
        tried.append(arguments)
        raise OSError("there is no network")

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield tried
    assert tried == []


@pytest.mark.parametrize("save", FAMILIES)
def test_get_ids_and_offsets_of_autotokenizer(save: Callable[[Path], None], tmp_path: Path) -> None:
    save(tmp_path)
    ours = TextTokenizer(tmp_path, LENGTH)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    pairs = list(zip(texts()[10:60], texts()[60:110], strict=True))
    asked: Any
    for asked in (texts(), pairs):
        expected = theirs(
            asked, truncation=True, max_length=LENGTH, padding=True, return_tensors="np"
        )
        got = ours.encode(asked)
        for name, values in expected.items():
            assert np.array_equal(got[name], values), name
    assert len({tuple(row) for row in ours.encode(texts())["input_ids"].tolist()}) > 150
    for text in texts():
        encodings = ours.windows([text], LENGTH, STRIDE)["encodings"]
        cut = {"truncation": True, "max_length": LENGTH, "stride": STRIDE}
        windows = theirs(text, return_overflowing_tokens=True, return_offsets_mapping=True, **cut)
        assert [encoding.ids for encoding in encodings] == windows["input_ids"]
        assert [encoding.offsets for encoding in encodings] == windows["offset_mapping"]


WITHOUT = (
    "import json, sys, pathlib; from clients._text.tokenizer import TextTokenizer\n"
    "rows = TextTokenizer(pathlib.Path(sys.argv[1]), 48).encode(json.load(sys.stdin))\n"
    "print(json.dumps([rows['input_ids'].tolist(), 'transformers' in sys.modules]))"
)


@pytest.mark.parametrize("save", FAMILIES)
def test_get_the_same_from_tokenizer_json_without_transformers(
    save: Callable[[Path], None], tmp_path: Path
) -> None:
    save(tmp_path)
    rows = TextTokenizer(tmp_path, LENGTH).encode(texts())["input_ids"].tolist()
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    loaded.save_pretrained(tmp_path)
    command = [sys.executable, "-c", WITHOUT, str(tmp_path)]
    done = subprocess.run(
        command, input=json.dumps(texts()), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [rows, False]


# the files of folders that are refused, and a text in the error
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "sentencepiece": (
        {"config.json": {"model_type": "xlm-roberta"}, "sentencepiece.bpe.model": "x"},
        "sentencepiece",
    ),
    "another model file": (
        {"config.json": {"model_type": "deberta-v2"}, "spm.model": "x"},
        "sentencepiece",
    ),
    "tiktoken": (
        {
            "tokenizer_config.json": {"tokenizer_class": "TokenizersBackend"},
            "tiktoken.model": "YQ== 0\n",
        },
        "tiktoken",
    ),
    "a word tokenizer": (
        {
            "config.json": {"model_type": "bert"},
            "tokenizer_config.json": {
                "tokenizer_class": "BertJapaneseTokenizer",
                "word_tokenizer_type": "mecab",
            },
            "vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n",
        },
        "fugashi",
    ),
    "code of its own": (
        {
            "config.json": {"model_type": "bert"},
            "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["own.Slow", "own.Fast"]}},
            "vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n",
            "own.py": "raise SystemExit('its code runs')",
        },
        "auto_map",
    ),
    "Python only": ({"config.json": {"model_type": "canine"}}, "CanineTokenizer"),
    "no vocabulary": ({"config.json": {"model_type": "bert"}}, "vocab.txt"),
    "no merges": ({"config.json": {"model_type": "roberta"}, "vocab.json": {"a": 0}}, "merges"),
    "a damaged vocabulary": (
        {"config.json": {"model_type": "roberta"}, "vocab.json": "{", "merges.txt": ""},
        "BPE",
    ),
    "nothing that names its class": ({"vocab.txt": "[PAD]\n[UNK]\n"}, "tokenizer.json"),
    "a damaged tokenizer.json": ({"tokenizer.json": "{}"}, "tokenizer.json"),
    "nothing": ({}, "tokenizer.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuse_an_unreadable_folder_by_name(case: str, tmp_path: Path) -> None:
    files, name = REFUSED[case]
    for file, content in files.items():
        (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        TextTokenizer(tmp_path, 0)
    assert str(caught.value.source).startswith(str(tmp_path))
    assert name in caught.value.problem + str(caught.value.source) + caught.value.remedy
    assert "save_pretrained" in caught.value.remedy
