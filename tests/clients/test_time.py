"""Tests that a client stops working at the request's deadline, and that the amount of text it reads
is limited."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from clients._boxes import Letterbox, nms
from clients._masks import outlines
from clients._text.classification import TextRanking
from clients._text.tokenizer import SHORT, TextTokenizer
from clients.base import Model, Names, Parameter, Tensors, TensorSpec
from clients.text import Client
from serving.budget import MOST_MADE, MOST_NAMES, NEVER, Deadline
from serving.codecs import IMAGE, Limits
from serving.errors import DecodingError, InvalidRequest, TooLate
from tests.support.deadlines import within
from tests.support.harness import encoded

pytestmark = pytest.mark.unit

LIMIT = 16  # tokens
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "#", "##a", "##b"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tokenizer whose tokens are single letters, for a model that takes
    LIMIT tokens."""
    tokenizer = Tokenizer(models.WordPiece({word: at for at, word in enumerate(WORDS)}))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pair = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", pair, [("[CLS]", 2), ("[SEP]", 3)]
    )
    made = tmp_path_factory.mktemp("model")
    config = {"max_position_embeddings": LIMIT, "id2label": {"0": "entailment"}}
    (made / "tokenizer").mkdir()
    tokenizer.save(str(made / "tokenizer/tokenizer.json"))
    (made / "tokenizer/config.json").write_text(json.dumps(config))
    return made


def client(folder: Path, task: str) -> Client:
    specs = tuple(TensorSpec(name, "INT64", (-1,)) for name in ("input_ids", "attention_mask"))
    output = (TensorSpec("logits", "FP32", (1,)),)
    return Client(Model("m", folder, specs, output, 8, {"task": task}))


def ranking(folder: Path) -> TextRanking:
    task = client(folder, "text-ranking").text_task
    assert isinstance(task, TextRanking)
    return task


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("longer", [(200, 3), (3, 200), (200, 300), (70, 70)])
def test_cut_long_texts_of_a_pair_without_changing_its_tokens(
    folder: Path, longer: tuple[int, int], side: str
) -> None:
    """Compare with the library itself, which makes a window for each combination of a part of one
    text with a part of the other."""
    texts = tuple(("abcab" * (count // 5 + 1))[:count] for count in longer)
    pair = (" ".join(texts[0]), " ".join(texts[1]))
    assert max(map(len, pair)) > SHORT * LIMIT
    library = Tokenizer.from_file(str(folder / "tokenizer/tokenizer.json"))
    whole = library.encode(*pair)
    library.enable_truncation(LIMIT, strategy="longest_first", direction=side)
    tokenizer = TextTokenizer(folder / "tokenizer", 0)
    tokenizer.direction = side
    tokenizer.tokenizer.enable_truncation(LIMIT, strategy="longest_first", direction=side)
    tensors = tokenizer.encode([pair, pair])
    assert tensors["input_ids"].tolist() == [library.encode(*pair).ids] * 2
    assert tensors["num_tokens"].tolist() == [len(whole)] * 2


def prepare(folder: Path, task: str, instance: Any, **values: Any) -> Tensors:
    own = client(folder, task)
    return own.prepare([instance], own.read_parameters(values))


FIT = Letterbox.fit(8, 8, 8, 8)
BOXES = np.array([[0, 0, 4, 4]], np.float32)
MASKS = (BOXES, np.ones((1, 1), np.float32), np.ones((1, 2, 2), np.float32), FIT)
PNG = encoded(Image.new("RGB", (4, 4)))
LATE: dict[str, Callable[[Path], Any]] = {
    "boxes": lambda _: nms(BOXES, np.ones(1), np.zeros(1, int), 0.5, 1),
    "outlines": lambda _: outlines(*MASKS),
    "an image": lambda _: IMAGE.from_bytes(PNG, Limits()),
    "texts": lambda folder: TextTokenizer(folder / "tokenizer", 0).encode(["a"]),
    "labels": lambda folder: prepare(
        folder, "zero-shot-classification", "a", candidate_labels=["b"]
    ),
    "windows": lambda folder: TextTokenizer(folder / "tokenizer", 0).windows(["a"], 8, 2),
}


@pytest.mark.parametrize("work", LATE.values(), ids=LATE)
def test_end_work_when_the_time_is_over(folder: Path, work: Callable[[Path], Any]) -> None:
    work(folder)
    for deadline, seconds in ((Deadline.after(-1), 1.0), (NEVER, 0.0)):
        with within(deadline, seconds), pytest.raises(TooLate):
            work(folder)


def test_refuse_wrong_definitions_of_parameters() -> None:
    parameter = Parameter("threshold", 0.5, "", 0.0, 1.0, None)  # type: ignore[arg-type]
    assert parameter.schema() == {"type": "number", "minimum": 0.0, "maximum": 1.0}
    assert Parameter("size", 1, "", choices=[1, 2]).expected() == "one of 1, 2"  # type: ignore[arg-type]
    wrong: list[tuple[Any, ...]] = [
        (0.5, 0.0, 1.0),  # without the help
        (None, ""),
        ([0.5], ""),
        (2.0, "", 0.0, 1.0),
        ("a", "", None, None, "abc"),
        ("c", "", None, None, ("a", "b")),
    ]
    for fields in wrong:
        with pytest.raises((ValueError, InvalidRequest), match="'threshold'"):
            Parameter("threshold", *fields)


def test_bound_the_names_in_a_parameter() -> None:
    for default in (Names(), ()):
        parameter = Parameter("classes", default, "")
        for values in (["1"] * MOST_NAMES, ",".join(["1"] * MOST_NAMES)):
            assert len(parameter.parse(values)) == MOST_NAMES
        for values in (["1"] * (MOST_NAMES + 1), ",".join(["1"] * (MOST_NAMES + 1))):
            with pytest.raises(InvalidRequest, match=str(MOST_NAMES)):
                parameter.parse(values)


LONG = "a" * 1_000
LABELS = ["a"] * 100
TEMPLATE = "a" * 498 + "{}"
# (task, instance, its parameters, number of characters in all rows of the instance)
ROWS: dict[str, tuple[str, Any, dict[str, Any], int]] = {
    "a prompt": ("embedding", "a", {"prompt": LONG}, 1_001),
    "a query": ("text-ranking", {"query": LONG, "documents": LABELS}, {}, 100_100),
    "a text": (
        "zero-shot-classification",
        {"text": LONG, "candidate_labels": LABELS},
        {"hypothesis_template": TEMPLATE},
        160_000,
    ),
    "a template": (
        "zero-shot-classification",
        "a",
        {"candidate_labels": LABELS, "hypothesis_template": TEMPLATE},
        50_100,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_count_the_characters_of_all_rows(folder: Path, name: str) -> None:
    """Because of this number, a request waits for its turn among long texts, although the instance
    itself is short."""
    task, instance, values, characters = ROWS[name]
    own = client(folder, task)
    assert own.length([instance] * 2, own.read_parameters(values)) == 2 * characters


def test_bound_the_documents_of_a_query(folder: Path) -> None:
    task = ranking(folder)
    task.tokenizer.max_characters = MOST_MADE // 4
    documents = ["a" * (MOST_MADE // 4)] * 5
    with pytest.raises(DecodingError, match=str(MOST_MADE)):
        task.tokens([{"query": "a", "documents": documents}], {})


class Noted:
    """The library's tokenizer, which records the names of the methods that are called."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.used: set[str] = set()
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        self.used.add(name)
        return getattr(self._tokenizer, name)


def test_tokenize_without_holding_the_gil(folder: Path) -> None:
    """The library's `encode` holds the GIL, so all other requests of the worker would wait."""
    read: list[Callable[[TextTokenizer], Tensors]] = [
        lambda tokenizer: tokenizer.windows([("a", "b " * 100)], LIMIT, 2),
        lambda tokenizer: tokenizer.encode([("a " * 500, "b " * 500)]),
    ]
    for tokens in read:
        tokenizer = TextTokenizer(folder / "tokenizer", 0)
        noted: Any = Noted(tokenizer.tokenizer)
        tokenizer.tokenizer = noted
        tokens(tokenizer)
        assert noted.used & {"encode", "encode_batch"} == {"encode_batch"}
