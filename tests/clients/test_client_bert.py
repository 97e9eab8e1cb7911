"""The text client's settings and limits, and its answers against those of transformers' pipelines."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from build_engines.build import export
from build_engines.families import bert
from build_engines.request import Request
from clients._text.tokenizer import LONGEST_TOKEN
from clients.base import Model
from clients.bert import Client
from serving.errors import DecodingError, InvalidRequest
from tests.clients.text_models import LIMIT, MASKED, TEXTS, VOCABULARY, Served, serve

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Served:
    folder = tmp_path_factory.mktemp("minilm") / "bert"
    export(Request("bert"), None, folder)
    return Served(folder, task="embedding")


def vectors(predictions: list[Any]) -> NDArray[Any]:
    return np.array([prediction["embedding"] for prediction in predictions])


def test_minilms_embeddings_are_those_of_transformers(minilm: Served) -> None:
    """Take the mean as the model card of all-MiniLM-L6-v2 does."""
    texts = ["A cat sits on the mat.", "Ünïcode, 東京 and 🙂!", "", "word " * 700]
    tokenizer = transformers.AutoTokenizer.from_pretrained(bert.minilm())
    network = transformers.AutoModel.from_pretrained(bert.minilm())
    for text, vector in zip(texts, vectors(minilm.predict(texts)), strict=True):
        with torch.no_grad():
            reference = network(**tokenizer(text, return_tensors="pt", truncation=True)).last_hidden_state[0].mean(0)
        assert np.abs(vector - (reference / reference.norm()).numpy()).max() < 1e-4


@pytest.mark.parametrize(("pooling", "output"), [("", "sentence_embedding"), ("cls", "last_hidden_state")])
def test_a_vector_that_the_network_pooled_itself_is_not_pooled_again(pooling: str, output: str, tmp_path: Path) -> None:
    settings = {"pooling": pooling} if pooling else {}
    served = serve(tmp_path, "embedding", None, "bert", normalize="false", **settings)
    assert served.client.outputs == (output,)
    tensors = served.client.preprocess(TEXTS)
    pooled = np.arange(4 * 32, dtype=np.float16).reshape(4, 32)
    given = served.client.read_parameters({})
    predictions = served.client.postprocess({output: pooled}, tensors, TEXTS, given)
    np.testing.assert_array_equal(vectors(predictions), pooled.astype(float))


def test_fill_mask_takes_a_model_that_gives_logits_for_every_token(tmp_path: Path) -> None:
    served = serve(tmp_path, "fill-mask")
    tensors = served.client.preprocess(MASKED)
    n, width = tensors["input_ids"].shape
    every = served.infer(tensors | {"masked_lm_positions": np.tile(np.arange(width), (n, 1))})
    model = served.client.model
    three = Model("bert", model.path, model.inputs[:3], model.outputs, 32, model.parameters)
    given = served.client.read_parameters({})
    full = Client(three).postprocess(every, tensors, MASKED, given)
    for ours, theirs in zip(full, served.predict(MASKED), strict=True):
        scores = [np.array([[t["score"] for t in m] for m in p["masks"]]) for p in (ours, theirs)]
        np.testing.assert_allclose(scores[0], scores[1], atol=1e-6)


def test_a_text_without_a_mask_is_refused_by_its_number(tmp_path: Path) -> None:
    client = serve(tmp_path, "fill-mask").client
    with pytest.raises(DecodingError, match=r"instance 1: .*\[MASK\]"):
        client.preprocess(["the [MASK]", "the cat"])
    with pytest.raises(DecodingError, match=r"instance 0: .*\[MASK\].* 24"):
        client.preprocess(["cat " * 50 + "[MASK]"])


@pytest.mark.parametrize(
    "changes",
    [
        {"num_labels": 4},
        {"num_labels": 1},
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        {"num_labels": 1, "problem_type": "regression"},
        {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}},
    ],
)
def test_classes_are_those_of_transformers_pipeline(changes: dict[str, Any], tmp_path: Path) -> None:
    served = serve(tmp_path, "text-classification", changes)
    pipeline = transformers.pipeline("text-classification", str(tmp_path / "checkpoint"))
    for text, prediction in zip(TEXTS, served.predict(TEXTS), strict=True):
        ours, theirs = prediction["classes"], pipeline(text, top_k=5)
        assert [c["label"] for c in ours] == [c["label"] for c in theirs]
        np.testing.assert_allclose([c["score"] for c in ours], [c["score"] for c in theirs], atol=1e-4)


def test_top_k_limits_the_classes(tmp_path: Path) -> None:
    served = serve(tmp_path, "text-classification", {"num_labels": 4})
    every = served.predict(TEXTS)
    assert [p["classes"] for p in served.predict(TEXTS, top_k=2)] == [p["classes"][:2] for p in every]


def test_a_label_file_takes_the_place_of_id2label(tmp_path: Path) -> None:
    serve(tmp_path, "text-classification", {"num_labels": 2})
    (tmp_path / "bert" / "labels.txt").write_text("minus\nplus\n")
    served = Served(tmp_path / "bert", task="text-classification", labels="labels.txt")
    classes = served.predict(TEXTS[:1])[0]["classes"]
    assert {c["class_id"]: c["label"] for c in classes} == {0: "minus", 1: "plus"}


def test_truncation_is_reported(tmp_path: Path) -> None:
    served = serve(tmp_path, "embedding")
    predictions = served.predict(["cat " * 22, "cat " * 23, "cat " * 500, ""])
    assert [p["tokens"] for p in predictions] == [24, 25, 502, 2]
    assert [p["truncated"] for p in predictions] == [False, True, True, False]


def test_only_the_part_of_a_long_text_that_the_model_can_take_is_tokenized(tmp_path: Path) -> None:
    """Tokenizing all of it would take 300 bytes for each character: 1.5 GB for 5 MB."""
    served = serve(tmp_path, "embedding")
    long = "the cat " * 10**6
    tensors = served.client.preprocess([long, long[:100]])
    assert tensors["num_tokens"][0] == LIMIT * LONGEST_TOKEN / 4 + 2
    assert (tensors["input_ids"][0] == tensors["input_ids"][1]).all()
    spaces = served.predict([" " * LIMIT * LONGEST_TOKEN + "the cat", "the cat"])
    assert [(p["tokens"], p["truncated"]) for p in spaces] == [(LIMIT + 1, True), (4, False)]


def test_texts_that_are_tokenized_in_portions_get_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve(tmp_path, "embedding")
    whole = served.client.preprocess(TEXTS * 3)
    monkeypatch.setattr("clients._text.tokenizer.PORTION", 20)
    portions = served.client.preprocess(TEXTS * 3)
    assert all((whole[name] == portions[name]).all() for name in whole)


def test_more_masks_than_are_filled_in_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mask needs a row of scores for the whole vocabulary, and a sequence for each of its tokens."""
    served = serve(tmp_path, "fill-mask")
    tensors = served.client.preprocess(["[MASK] " * 3])
    values = {served.client.model.outputs[0].name: np.zeros((1, 3, 10**3), np.float32)}
    with pytest.raises(InvalidRequest, match="'top_k'"):
        served.client.postprocess(values, tensors, [""], served.client.read_parameters({"top_k": 900}))
    monkeypatch.setattr("clients._text.fill_mask.MOST_MASKS", 3)
    with pytest.raises(DecodingError, match=r"instance 1: .*4 \[MASK\]"):
        served.client.preprocess(["[MASK] " * 3, "[MASK] " * 4])


def test_the_limit_can_be_set_lower_and_never_above_the_models(tmp_path: Path) -> None:
    serve(tmp_path, "embedding")
    for setting, width in (("10", 10), ("0", LIMIT), ("4096", LIMIT)):
        served = Served(tmp_path / "bert", max_length=setting)
        assert served.client.preprocess(["cat " * 100])["input_ids"].shape == (1, width)


def test_padding_is_to_the_longest_of_the_batch_or_to_a_multiple(tmp_path: Path) -> None:
    plain = serve(tmp_path, "embedding")
    tensors = plain.client.preprocess(["the cat", "the cat sat on"])
    assert tensors["input_ids"].tolist()[0] == [2, 5, 7, 3, 0, 0]
    assert tensors["attention_mask"].tolist()[0] == [1, 1, 1, 1, 0, 0]
    assert {tensors[name].dtype for name in bert_inputs(plain)} == {np.dtype(np.int64)}
    wide = Served(tmp_path / "bert", pad_to_multiple_of="16")
    assert wide.client.preprocess(["the cat"])["input_ids"].shape == (1, 16)
    assert wide.client.preprocess(["cat " * 20])["input_ids"].shape == (1, LIMIT)
    assert np.abs(vectors(wide.predict(TEXTS)) - vectors(plain.predict(TEXTS))).max() < 1e-5


def bert_inputs(served: Served) -> list[str]:
    return [spec.name for spec in served.client.model.inputs]


def test_vocab_txt_alone_tokenizes_as_tokenizer_json_does(tmp_path: Path) -> None:
    served = serve(tmp_path, "fill-mask")
    folder = tmp_path / "bert" / "tokenizer"
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY))
    again = Served(tmp_path / "bert", task="fill-mask")
    assert again.predict(MASKED) == served.predict(MASKED)


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_missing_or_damaged_tokenizer_is_named(content: str | None, tmp_path: Path) -> None:
    serve(tmp_path, "embedding")
    file = tmp_path / "bert/tokenizer/tokenizer.json"
    file.unlink()
    if content:
        file.write_text(content)
    with pytest.raises(InvalidRequest, match=r"tokenizer\.json"):
        Served(tmp_path / "bert")


def test_a_tokenizer_without_a_mask_cannot_fill_masks(tmp_path: Path) -> None:
    serve(tmp_path, "fill-mask")
    settings = tmp_path / "bert" / "tokenizer" / "tokenizer_config.json"
    settings.write_text(json.dumps({"mask_token": "<none>"}))
    with pytest.raises(InvalidRequest, match="'<none>'"):
        Served(tmp_path / "bert", task="fill-mask")


def test_threads_share_a_client(minilm: Served) -> None:
    texts = [f"Sentence number {i} " + "goes on " * (i % 7) for i in range(64)]
    expected = [minilm.client.preprocess([text])["input_ids"].tolist() for text in texts]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            got = pool.map(lambda text: minilm.client.preprocess([text])["input_ids"].tolist(), texts)
            assert list(got) == expected
