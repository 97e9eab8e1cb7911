"""Tests the text client: every task with every kind of encoder against transformers' own pipelines,
its settings and its limits."""

import importlib
import itertools
import json
import shutil
import tracemalloc
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from tokenizers import processors

from build_engines.comparison import compare
from build_engines.request import Request
from clients._text.fill_mask import FillMask
from clients._text.tokenizer import LONGEST_TOKEN, PORTION
from clients.base import Model
from clients.text import TASKS, Client
from serving.errors import DecodingError, InvalidRequest, PayloadTooLarge, ServingError
from serving.host.tritonserver import backend_directory
from serving.repository.model_config import FILLED
from tests.build_engines.models import exported
from tests.clients.text_models import (
    FAMILIES,
    LIMIT,
    MASKED,
    TEXTS,
    VOCABULARY,
    Served,
    save_checkpoint,
    serve,
)
from tests.support.harness import parsed

pytestmark = pytest.mark.full

LABELS = {0: "O", 1: "B-CAT", 2: "I-CAT", 3: "B-DOG", 4: "I-DOG"}
ZERO_SHOT = "zero-shot-classification"
INFERENCE = {0: "contradiction", 1: "neutral", 2: "entailment"}
PAIRS = [
    {"text": "the cat sat on the mat.", "text_pair": "A dog!"},
    {
        "text": "the sun is blue",
        "text_pair": "the moon was red, the moon was big and the moon ran under the rug " * 2,
    },
]
LONG = "the cat sat on the mat, a big dog ran. " * 6

Serve = Callable[..., tuple[Served, Any]]


def named(labels: Mapping[int, str]) -> dict[str, Any]:
    return {"id2label": dict(labels), "label2id": {name: index for index, name in labels.items()}}


@pytest.fixture(scope="module")
def served_with(tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """Return a function that builds the model of a task and family once. It returns the model and
    its checkpoint."""
    models: dict[tuple[str, str], tuple[Served, Path]] = {}

    def built(task: str, family: str = "bert", **changes: Any) -> tuple[Served, Path]:
        if (task, family) not in models:
            folder = tmp_path_factory.mktemp("model")
            models[task, family] = serve(folder, task, changes, family), folder / "checkpoint"
        return models[task, family]

    return built


def again(served: Served, **settings: str) -> Served:
    """Return another client of the same model, which a test may change."""
    model = served.client.model
    return Served(model.path, **{**model.parameters, **settings})


def pipeline(task: str, checkpoint: Path) -> Any:
    return transformers.pipeline(task, str(checkpoint))


def assert_scores(ours: list[Any], theirs: list[Any]) -> None:
    scores = [[each["score"] for each in entries] for entries in (ours, theirs)]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_fill_masks_as_transformers_does_with_every_encoder(
    family: str, served_with: Serve
) -> None:
    served, checkpoint = served_with("fill-mask", family)
    mask, reference = served.client.tokenizer.mask, pipeline("fill-mask", checkpoint)
    texts = [f"the {mask} sat on the mat.", f"{mask} dog ran on {mask} rug!"]
    # more than the number of tokens in its vocabulary
    parameters = {"top_k": 1000} if family == "bert" else {}
    all_tokens = {"top_k": len(VOCABULARY)} if parameters else {}
    for text, prediction in zip(texts, served.predict(texts, **parameters), strict=True):
        theirs = reference(text, **all_tokens)
        theirs = theirs if isinstance(theirs[0], list) else [theirs]
        for ours, wanted in zip(prediction["masks"], theirs, strict=True):
            assert_scores(ours, wanted)
            assert [(t["token_id"], t["sequence"]) for t in ours] == [
                (t["token"], t["sequence"]) for t in wanted
            ]


def test_fill_masks_with_the_named_targets(served_with: Serve) -> None:
    served, checkpoint = served_with("fill-mask")
    text, targets = "the [MASK] sat on the mat.", ["dog", "cat", "moon"]
    ours = served.predict([text], targets=targets)[0]["masks"][0]
    theirs = pipeline("fill-mask", checkpoint)(text, targets=targets)
    assert [t["token"] for t in ours] == [t["token_str"] for t in theirs]
    assert_scores(ours, theirs)


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2", "modernbert"])
def test_classify_texts_and_pairs_as_the_pipeline_does(family: str, served_with: Serve) -> None:
    served, checkpoint = served_with("text-classification", family, num_labels=3)
    check_classes(
        served, checkpoint, [TEXTS[0], PAIRS[0], TEXTS[2], {"text": TEXTS[0], "text_pair": ""}]
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"num_labels": 4},
        {"num_labels": 1},
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        {"num_labels": 1, "problem_type": "regression"},
        named({0: "bad", 1: "good"}),
    ],
)
def test_read_the_problem_type_from_the_checkpoint(changes: dict[str, Any], tmp_path: Path) -> None:
    check_classes(
        serve(tmp_path, "text-classification", changes), tmp_path / "checkpoint", TEXTS, top_k=2
    )


def check_classes(served: Served, checkpoint: Path, instances: list[Any], top_k: int = 5) -> None:
    reference = pipeline("text-classification", checkpoint)
    for instance, prediction in zip(instances, served.predict(instances, top_k=top_k), strict=True):
        theirs = reference(instance, top_k=top_k, truncation=True)
        assert [c["label"] for c in prediction["classes"]] == [c["label"] for c in theirs]
        assert_scores(prediction["classes"], theirs)


def test_keep_the_end_if_the_tokenizer_truncates_on_the_left(
    served_with: Serve, tmp_path: Path
) -> None:
    # the text has more characters than are read
    text, left = LONG * 20 + TEXTS[2], {"truncation_side": "left"}
    classes = with_tokenizer(
        *served_with("text-classification", num_labels=3), left, tmp_path / "classes"
    )
    check_classes(*classes, [text, {"text": text, "text_pair": text}])
    served, checkpoint = with_tokenizer(
        *served_with("token-classification", **named(LABELS)), left, tmp_path / "tags"
    )
    every = pipeline("token-classification", checkpoint)(text, ignore_labels=[])
    same_entities(served.predict([text], ignore_labels=[])[0]["entities"], every)
    served, _ = with_tokenizer(*served_with("embedding"), left, tmp_path / "embedding")
    np.testing.assert_equal(served.predict(["cat"], prompt=text), served.predict([f"{text}cat"]))


def test_truncate_the_longer_text_of_a_pair_and_report_it(served_with: Serve) -> None:
    served, checkpoint = served_with("text-classification", "roberta", num_labels=3)
    check_classes(served, checkpoint, PAIRS[::-1])
    ours = served.predict(PAIRS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    assert [p["tokens"] for p in ours] == [len(tokenizer(**pair).input_ids) for pair in PAIRS]
    assert [p["truncated"] for p in ours] == [False, True]


@pytest.mark.parametrize("function", ["sigmoid", "none", "softmax"])
def test_choose_the_score_function_by_a_parameter(function: str, served_with: Serve) -> None:
    served, checkpoint = served_with("text-classification", "bert", num_labels=3)
    classify = pipeline("text-classification", checkpoint)
    theirs = classify(TEXTS[0], top_k=None, function_to_apply=function)
    (ours,) = served.predict(TEXTS[:1], function_to_apply=function)
    assert_scores(ours["classes"], theirs)


def same_entities(ours: list[Any], theirs: list[Any]) -> None:
    assert [(e["label"], e["word"], e["start"], e["end"]) for e in ours] == [
        (e.get("entity_group", e.get("entity")), e["word"], e["start"], e["end"]) for e in theirs
    ]
    assert_scores(ours, theirs)


@pytest.mark.parametrize("strategy", ["none", "simple", "first", "average", "max"])
@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.filterwarnings("ignore:Tokenizer does not support real words")
def test_find_entities_as_the_pipeline_does(family: str, strategy: str, served_with: Serve) -> None:
    served, checkpoint = served_with("token-classification", family, **named(LABELS))
    reference = pipeline("token-classification", checkpoint)
    texts = [*TEXTS[:3], "Quickly, the catly CATS ran!  Ünder the moons", LONG]
    predictions = served.predict(texts, aggregation_strategy=strategy)
    for text, prediction in zip(texts, predictions, strict=True):
        same_entities(prediction["entities"], reference(text, aggregation_strategy=strategy))
    assert [p["truncated"] for p in predictions] == [p["tokens"] > LIMIT for p in predictions]
    assert predictions[-1]["truncated"]
    assert any(prediction["entities"] for prediction in predictions)
    every = served.predict(texts[:1], aggregation_strategy=strategy, ignore_labels=[])
    same_entities(
        every[0]["entities"], reference(texts[0], aggregation_strategy=strategy, ignore_labels=[])
    )


@pytest.mark.parametrize("stride", [1, 5])
def test_read_a_long_text_in_windows_if_a_stride_is_set(stride: int, served_with: Serve) -> None:
    served, checkpoint = served_with("token-classification", "bert", **named(LABELS))
    reference = pipeline("token-classification", checkpoint)
    parameters = {"aggregation_strategy": "simple", "stride": stride}
    ours = served.predict([LONG, "A dog!"], **parameters)
    same_entities(ours[0]["entities"], reference(LONG, **parameters))
    same_entities(ours[1]["entities"], reference("A dog!", **parameters))
    tokens = len(transformers.AutoTokenizer.from_pretrained(checkpoint)(LONG).input_ids)
    assert [(p["tokens"], p["truncated"]) for p in ours] == [(tokens, False), (5, False)]


@pytest.mark.parametrize("family", ["bert", "mpnet"])
@pytest.mark.parametrize("multi_label", [False, True])
def test_classify_zero_shot_as_the_pipeline_does(
    family: str, multi_label: bool, served_with: Serve
) -> None:
    served, checkpoint = served_with(ZERO_SHOT, family, **named(INFERENCE))
    reference = pipeline(ZERO_SHOT, checkpoint)
    for labels, template in (
        (["cat", "red dog", "moon"], "the {} is big."),
        (["fox"], "This example is {}."),
    ):
        parameters = {"multi_label": multi_label, "hypothesis_template": template}
        ours = served.predict(TEXTS[:3], candidate_labels=labels, **parameters)
        for text, prediction in zip(TEXTS[:3], ours, strict=True):
            theirs = reference(text, candidate_labels=labels, **parameters)
            assert [c["label"] for c in prediction["classes"]] == theirs["labels"]
            np.testing.assert_allclose(
                [c["score"] for c in prediction["classes"]], theirs["scores"], atol=1e-4
            )


def test_take_the_labels_from_the_instance(served_with: Serve) -> None:
    served, _ = served_with(ZERO_SHOT, "bert", **named(INFERENCE))
    own = {"text": TEXTS[0], "candidate_labels": ["moon", "sun"]}
    ours = served.predict([own, TEXTS[0]], candidate_labels=["cat", "dog", "fox"])
    assert [{c["label"] for c in p["classes"]} for p in ours] == [
        {"moon", "sun"},
        {"cat", "dog", "fox"},
    ]
    assert ours[0] == served.predict([TEXTS[0]], candidate_labels=["moon", "sun"])[0]
    without = {"text": TEXTS[0], "candidate_labels": []}
    assert served.predict([without], candidate_labels=["cat", "dog", "fox"])[0] == ours[1]


def test_do_not_copy_a_long_prompt_for_each_text(served_with: Serve) -> None:
    served, _ = served_with("embedding", "bert")
    prompt = "the " * 2**20
    tracemalloc.start()
    try:
        predictions = served.predict(["cat"] * 32, prompt=prompt)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * len(prompt)
    assert [p["truncated"] for p in predictions] == [True] * 32


@pytest.mark.parametrize("task", ["embedding", "token-classification", "text-ranking"])
def test_refuse_a_text_without_tokens_by_its_index(task: str, served_with: Serve) -> None:
    served = again(served_with(task, **CHANGES.get(task, {}))[0])
    # a tokenizer that adds no special tokens
    served.client.tokenizer.tokenizer.post_processor = processors.Sequence([])
    texts: list[Any] = ["the cat", ""]
    if task == "text-ranking":
        texts = [
            {"query": "", "documents": ["cat", "dog"]},
            {"query": "", "documents": ["cat", ""]},
        ]
    with pytest.raises(DecodingError) as raised:
        served.predict(texts)
    assert raised.value.instance == 1
    assert served.predict(texts[:1])


def test_refuse_zero_shot_without_an_entailment_label(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="'entail'"):
        serve(tmp_path, ZERO_SHOT, named({0: "bad", 1: "good"}))


def test_refuse_to_rank_by_a_softmax_over_all_documents(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="'activation'"):
        serve(tmp_path, "text-ranking", {"num_labels": 1}, activation="softmax")


def test_rank_documents_by_their_score_with_the_query(served_with: Serve) -> None:
    served, checkpoint = served_with("text-ranking", "bert", num_labels=1)
    documents = ["the moon was red", "A dog!", "the cat sat on the mat.", LONG]
    reference = pipeline("text-classification", checkpoint)
    query = "the big cat"
    wanted: list[dict[str, Any]] = [
        {"index": index, "document": text}
        | reference({"text": query, "text_pair": text}, truncation=True)
        for index, text in enumerate(documents)
    ]
    wanted.sort(key=lambda entry: -entry["score"])
    two = [{"query": query, "documents": documents}, {"query": "a", "documents": documents[1:2]}]
    ours = served.predict(two, return_documents=True)
    for key in ("index", "document"):
        assert [each[key] for each in ours[0]["ranking"]] == [each[key] for each in wanted]
    assert_scores(ours[0]["ranking"], wanted)
    assert [p["truncated"] for p in ours] == [True, False]
    assert [len(p["ranking"]) for p in served.predict(two, top_k=2)] == [2, 1]


NO_TYPES = [
    {"model_input_names": ["input_ids", "attention_mask"]},
    {"tokenizer_class": "PreTrainedTokenizerFast"},
    {"tokenizer_class": "DistilBertTokenizerFast"},
]
TYPES = [
    {"tokenizer_class": "BertTokenizerFast"},
    {"tokenizer_class": "ElectraTokenizer"},
    {"tokenizer_class": None},
    {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": ["input_ids", "token_type_ids"],
    },
]


def with_tokenizer(
    served: Served, checkpoint: Path, changes: dict[str, Any], folder: Path
) -> tuple[Served, Path]:
    """Copy the model and its checkpoint, and make these `changes` in the tokenizer's settings of
    both."""
    shutil.copytree(served.client.model.path, folder / "model")
    shutil.copytree(checkpoint, folder / "checkpoint")
    for path in (folder / "model/tokenizer", folder / "checkpoint"):
        settings = json.loads((checkpoint / "tokenizer_config.json").read_text()) | changes
        (path / "tokenizer_config.json").write_text(
            json.dumps({k: v for k, v in settings.items() if v is not None})
        )
    return Served(folder / "model", **served.client.model.parameters), folder / "checkpoint"


@pytest.mark.parametrize("changes", [*NO_TYPES, *TYPES], ids=str)
def test_pass_token_types_as_transformers_does(
    changes: dict[str, Any], served_with: Serve, tmp_path: Path
) -> None:
    served, checkpoint = with_tokenizer(
        *served_with("text-classification", num_labels=3), changes, tmp_path
    )
    check_classes(served, checkpoint, PAIRS)


@pytest.mark.parametrize("family", ["bert", "distilbert"])  # each is exported by different code
@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last"])
def test_pool_a_text_by_the_checkpoint_or_the_setting(
    pooling: str, family: str, tmp_path: Path
) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "embedding", family)
    (checkpoint / "1_Pooling").mkdir()
    kind = {"cls": "cls_token", "last": "lasttoken"}.get(pooling, f"{pooling}_tokens")
    (checkpoint / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{kind}": True}))
    spec = exported(Request("own", client="bert", task="embedding"), checkpoint, tmp_path / "bert")
    pooled: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "mean": lambda states: states.mean(0),
        "cls": lambda states: states[0],
        "max": lambda states: states.max(0).values,
        "last": lambda states: states[-1],
    }
    network = transformers.AutoModel.from_pretrained(checkpoint).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    for settings in ({}, {"pooling": pooling}):  # pooling by the network, then by the client
        predictions = Served(tmp_path / "bert", **spec.settings, **settings).predict(
            TEXTS, normalize=False
        )
        for text, prediction in zip(TEXTS, predictions, strict=True):
            states = (
                network(**tokenizer(text, return_tensors="pt", truncation=True))
                .last_hidden_state[0]
                .detach()
            )
            np.testing.assert_allclose(prediction["embedding"], pooled[pooling](states), atol=1e-4)


def test_cut_then_scale_embeddings_and_prepend_prompts(served_with: Serve, tmp_path: Path) -> None:
    folder = with_tokenizer(*served_with("embedding"), {}, tmp_path)[0].client.model.path
    prompts = {"prompts": {"query": "the cat ", "other": "a dog "}, "default_prompt_name": "other"}
    (folder / "tokenizer" / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    served = Served(folder)
    whole, cut, prompted, named_prompt = (
        np.array(served.predict([text], **parameters)[0]["embedding"])
        for text, parameters in (
            ("the cat sat", {"prompt": "", "normalize": False}),
            ("the cat sat", {"prompt": "", "dimensions": 8}),
            ("sat", {"prompt": "the cat ", "normalize": False}),
            ("sat", {"prompt_name": "query", "normalize": False}),
        )
    )
    np.testing.assert_allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-5)
    np.testing.assert_allclose(prompted, whole, atol=1e-6)
    np.testing.assert_allclose(named_prompt, whole, atol=1e-6)
    with pytest.raises(InvalidRequest, match=r"'prompt_name': .*'passage'"):
        served.predict(["a"], prompt_name="passage")


QUESTION = "the moon"
CONTEXT = (
    "The cat sat on the mat. A big dog ran under the moons, the sun is blue! Quickly the red "
    "fox was on a rug."
)


def answers_of_transformers(
    checkpoint: Path,
    context: str,
    top_k: int = 1,
    doc_stride: int = 0,
    max_seq_len: int = LIMIT,
    max_answer_len: int = 15,
    handle_impossible_answer: bool = False,
) -> list[dict[str, Any]]:
    """Return the best spans of all windows. The probability of a span is that of its first token
    times that of its last. Transformers 5 does not have this pipeline; the one of version 4.57
    returns the same for these models."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    network = transformers.AutoModelForQuestionAnswering.from_pretrained(checkpoint).eval()
    windows = tokenizer(
        QUESTION,
        context,
        truncation="only_second",
        max_length=max_seq_len,
        stride=doc_stride or max_seq_len // 2,
        return_overflowing_tokens=True,
        padding=True,
        return_tensors="pt",
    )
    names = ["input_ids", "attention_mask"]
    names += ["token_type_ids"] * (network.config.type_vocab_size > 1)
    outputs = network(**{name: windows[name] for name in names})
    answers: dict[str, dict[str, Any]] = {}
    null = 1.0
    for window, *both in zip(
        windows.encodings, outputs.start_logits, outputs.end_logits, strict=True
    ):
        allowed = [at for at, part in enumerate(window.sequence_ids) if part == 1 or at == 0]
        start, end = (
            dict(zip(allowed, torch.softmax(logits[allowed], 0).tolist(), strict=True))
            for logits in both
        )
        null = min(null, start[0] * end[0])
        spans = [
            (start[first] * end[last], first, last)
            for first in allowed[1:]
            for last in allowed[1:]
            if first <= last < first + max_answer_len
        ]
        for score, first, last in sorted(spans, reverse=True)[: top_k * 2 + 10]:
            begin = window.word_to_chars(window.token_to_word(first), 1)[0]
            behind = window.word_to_chars(window.token_to_word(last), 1)[1]
            text = context[begin:behind]
            answer = {"answer": text, "score": 0.0, "start": begin, "end": behind}
            answers.setdefault(text.lower(), answer)["score"] += score
    candidates = list(answers.values())
    if handle_impossible_answer:
        candidates.append({"answer": "", "score": null, "start": 0, "end": 0})
    return sorted(candidates, key=lambda answer: -answer["score"])[:top_k]


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"top_k": 5},
        {"top_k": 40, "handle_impossible_answer": True},
        {"top_k": 4, "doc_stride": 3, "max_seq_len": 20, "max_answer_len": 2},
    ],
)
def test_find_answers_among_all_spans_in_windows(
    family: str, parameters: dict[str, Any], served_with: Serve
) -> None:
    served, checkpoint = served_with("question-answering", family)
    instances = [
        {"question": QUESTION, "context": context} for context in (CONTEXT, "the cat ran.")
    ]
    length = served.client.tokenizer.max_length
    for instance, prediction in zip(
        instances, served.predict(instances, **parameters), strict=True
    ):
        theirs = answers_of_transformers(
            checkpoint, instance["context"], **{"max_seq_len": length, **parameters}
        )
        assert_scores(prediction["answers"], theirs)
        for ours, wanted in zip(prediction["answers"], theirs, strict=True):
            assert instance["context"][ours["start"] : ours["end"]] == ours["answer"]
            assert ours["answer"] == wanted["answer"] or abs(ours["score"] - wanted["score"]) < 1e-4
        assert not prediction["truncated"]


def test_read_starts_and_ends_from_two_outputs(served_with: Serve, tmp_path: Path) -> None:
    served, _ = served_with("question-answering", "bert")
    shutil.copytree(served.client.model.path, tmp_path / "apart")
    model = onnx.load(tmp_path / "apart/1/model.onnx")
    more = parsed("""more (float[batch, sequence, 2] logits)
        => (float[batch, sequence] start_logits, float[batch, sequence] end_logits)
        <int64 first = {0}, int64 last = {1}> {
        start_logits = Gather <axis = 2> (logits, first)
        end_logits = Gather <axis = 2> (logits, last)
    }""").graph
    model.graph.initializer.extend(more.initializer)
    model.graph.node.extend(more.node)
    model.graph.output.extend(more.output)
    onnx.save(model, tmp_path / "apart/1/model.onnx")
    apart = Served(tmp_path / "apart", **served.client.model.parameters)
    instances = [{"question": QUESTION, "context": CONTEXT}]
    assert apart.client.outputs == ("start_logits", "end_logits")
    assert apart.predict(instances) == served.predict(instances)


def test_return_an_answer_of_partial_words(served_with: Serve) -> None:
    served, _ = served_with("question-answering", "bert")
    instance = {"question": "is it", "context": "suns"}
    for words, expected in ((True, {"suns"}), (False, {"sun", "s", "suns"})):
        (prediction,) = served.predict([instance], top_k=9, align_to_words=words)
        assert {each["answer"] for each in prediction["answers"]} == expected


def test_find_no_answer_in_a_question(served_with: Serve) -> None:
    """The tokenizer reads the text [CLS] as its special token."""
    served, _ = served_with("question-answering", "bert")
    instance = {"question": "is it the cat [CLS]", "context": "sun"}
    (prediction,) = served.predict([instance], top_k=100)
    assert [each["answer"] for each in prediction["answers"]] == ["sun"]


def test_require_logits_for_every_token_to_fill_masks(served_with: Serve) -> None:
    served, _ = served_with("fill-mask")
    tensors = served.client.prepare(MASKED, served.client.defaults)
    n, width = tensors["input_ids"].shape
    every = served.infer(tensors | {"masked_lm_positions": np.tile(np.arange(width), (n, 1))})
    model = served.client.model
    three = Model("bert", model.path, model.inputs[:3], model.outputs, 32, model.parameters)
    parameters = served.client.read_parameters({})
    full = Client(three).postprocess(every, tensors, MASKED, parameters)
    for ours, theirs in zip(full, served.predict(MASKED), strict=True):
        scores = [np.array([[t["score"] for t in m] for m in p["masks"]]) for p in (ours, theirs)]
        np.testing.assert_allclose(scores[0], scores[1], atol=1e-6)


def test_prefer_a_label_file_to_id2label(served_with: Serve, tmp_path: Path) -> None:
    served, _ = with_tokenizer(*served_with("text-classification", num_labels=3), {}, tmp_path)
    (tmp_path / "model/labels.txt").write_text("minus\nzero\nplus\n")
    served = again(served, labels="labels.txt")
    classes = served.predict(TEXTS[:1])[0]["classes"]
    assert {c["class_id"]: c["label"] for c in classes} == {0: "minus", 1: "zero", 2: "plus"}


def test_report_a_long_text_as_truncated(served_with: Serve) -> None:
    """Tokenizing the whole text would take 300 bytes per character: 1.5 GB for 5 MB."""
    served, _ = served_with("embedding")
    short = served.predict(["cat " * 22, "cat " * 23, "cat " * 500, ""])
    assert [(p["tokens"], p["truncated"]) for p in short] == [
        (24, False),
        (25, True),
        (502, True),
        (2, False),
    ]
    long = "the cat " * 10**6
    tensors = served.client.prepare([long, long[:100]], served.client.defaults)
    assert tensors["num_tokens"][0] == LIMIT * LONGEST_TOKEN / 4 + 2
    assert (tensors["input_ids"][0] == tensors["input_ids"][1]).all()
    spaces = served.predict([" " * LIMIT * LONGEST_TOKEN + "the cat", "the cat"])
    assert [(p["tokens"], p["truncated"]) for p in spaces] == [(LIMIT + 1, True), (4, False)]


def test_get_the_same_tokens_from_texts_in_portions(served_with: Serve) -> None:
    served, _ = served_with("embedding")
    long = ["the cat " * 100, *TEXTS]
    times = 2 * PORTION // len("".join(long))
    whole, portions = (
        served.client.prepare(long, served.client.defaults),
        served.client.prepare(long * times, served.client.defaults),
    )
    for name, rows in whole.items():
        assert np.array_equal(np.concatenate([rows] * times), portions[name])


def test_refuse_more_masks_than_the_limit(served_with: Serve) -> None:
    """Each mask needs a row of scores for the whole vocabulary, and a text (`sequence`) for each of
    its tokens."""
    served = again(served_with("fill-mask")[0])
    tensors = served.client.prepare(["[MASK] " * 3], served.client.defaults)
    values = {served.client.model.outputs[0].name: np.zeros((1, 3, 10**3), np.float32)}
    with pytest.raises(InvalidRequest, match="'top_k'"):
        served.client.postprocess(
            values, tensors, [""], served.client.read_parameters({"top_k": 900})
        )
    assert isinstance(served.client.text_task, FillMask)
    served.client.text_task.most_masks = 3
    with pytest.raises(DecodingError, match=r"instance 1: .*4 \[MASK\]"):
        served.client.prepare(["[MASK] " * 3, "[MASK] " * 4], served.client.defaults)


@pytest.mark.parametrize(("setting", "width"), [("10", 10), ("0", LIMIT), ("4096", LIMIT)])
def test_lower_the_limit_of_a_model_but_never_raise_it(
    setting: str, width: int, served_with: Serve
) -> None:
    client = again(served_with("embedding")[0], max_length=setting).client
    assert client.prepare(["cat " * 100], client.defaults)["input_ids"].shape == (1, width)


def test_pad_to_the_longest_of_the_batch_or_to_a_multiple(served_with: Serve) -> None:
    plain, _ = served_with("embedding")
    tensors = plain.client.prepare(["the cat", "the cat sat on"], plain.client.defaults)
    assert tensors["input_ids"].tolist()[0] == [2, 5, 7, 3, 0, 0]
    assert tensors["attention_mask"].tolist()[0] == [1, 1, 1, 1, 0, 0]
    assert {tensors[spec.name].dtype for spec in plain.client.model.inputs} == {np.dtype(np.int64)}
    wide = again(plain, pad_to_multiple_of="16")
    assert wide.client.prepare(["the cat"], wide.client.defaults)["input_ids"].shape == (1, 16)
    assert wide.client.prepare(["cat " * 20], wide.client.defaults)["input_ids"].shape == (1, LIMIT)
    ours, theirs = (
        [each["embedding"] for each in served.predict(TEXTS)] for served in (wide, plain)
    )
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_leave_out_inputs_that_the_backend_fills_in(served_with: Serve) -> None:
    client = of_our_backend(served_with("text-classification", num_labels=3)[0])
    names = {spec.name for spec in client.model.inputs}

    def sent(*instances: Any) -> dict[str, Any]:
        tensors = client.prepare(instances, client.defaults)
        return {name: tensors[name].tolist() for name in names & tensors.keys()}

    assert sent("the cat") == {"input_ids": [[2, 5, 7, 3]]}
    assert sent("the cat", "the dog").keys() == {"input_ids"}
    several = sent("the cat", "the cat sat")
    assert several.keys() == {"input_ids", "attention_mask"}
    assert several["attention_mask"] == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    pair = sent({"text": "the cat", "text_pair": "a"})
    assert pair == {"input_ids": [[2, 5, 7, 3, 6, 3]], "token_type_ids": [[0, 0, 0, 0, 1, 1]]}


def test_pool_the_tokens_of_a_text_without_a_mask(served_with: Serve) -> None:
    served = again(served_with("embedding")[0], pooling="mean")
    client = of_our_backend(served)
    for texts in ([TEXTS[0]], TEXTS[:2]):
        parameters = client.defaults
        full = served.client.prepare(texts, parameters)
        outputs = served.infer(full)
        own = client.postprocess(outputs, client.prepare(texts, parameters), texts, parameters)
        wanted = served.client.postprocess(outputs, full, texts, parameters)
        for one, other in zip(own, wanted, strict=True):
            np.testing.assert_array_equal(one["embedding"], other["embedding"])


def of_our_backend(served: Served) -> Client:
    """Return the client of a model that `serve` has staged for a backend of this project."""
    model = served.client.model
    inputs = tuple(replace(spec, optional=spec.name in FILLED) for spec in model.inputs)
    parameters = {**model.parameters, "pad_to_multiple_of": "8"}
    return Client(replace(model, inputs=inputs, parameters=parameters))


def test_refuse_to_fill_masks_without_a_mask_token(served_with: Serve, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="'<none>'"):
        with_tokenizer(*served_with("fill-mask"), {"mask_token": "<none>"}, tmp_path)


def test_share_a_client_between_threads(served_with: Serve) -> None:
    served, _ = served_with("embedding")
    texts = [f"Sentence number {i} " + "goes on " * (i % 7) for i in range(64)]
    expected = [
        served.client.prepare([text], served.client.defaults)["input_ids"].tolist()
        for text in texts
    ]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            got = pool.map(
                lambda text: served.client.prepare([text], served.client.defaults)[
                    "input_ids"
                ].tolist(),
                texts,
            )
            assert list(got) == expected


CHANGES = {
    "text-classification": {"num_labels": 3},
    "token-classification": named(LABELS),
    ZERO_SHOT: named(INFERENCE),
    "text-ranking": {"num_labels": 1},
}


@pytest.mark.parametrize("task", TASKS)
def test_compare_an_engine_of_each_task_with_its_reference(task: str, served_with: Serve) -> None:
    served, _ = served_with(task, **CHANGES.get(task, {}))
    (score,) = compare(served.client.model, served.client, served.infer, served.infer, count=3)
    assert score.value == pytest.approx(1.0)


@pytest.fixture
def batching(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import the module with which the backends merge requests. It needs a module of Triton's."""
    monkeypatch.syspath_prepend(backend_directory() / "python")
    return importlib.import_module("batching")


# an instance with this text, for each task that needs more than a text
INSTANCES: dict[str, Callable[[str], Any]] = {
    "fill-mask": lambda text: f"[MASK] {text}",
    "question-answering": lambda text: {"question": "a", "context": text},
    ZERO_SHOT: lambda text: {"text": text, "candidate_labels": ["a"]},
    "text-ranking": lambda text: {"query": "a", "documents": [text]},
}
# parameters with which a text has as few tokens, or as many, as possible
SIZES: dict[str, dict[str, Any]] = {
    ZERO_SHOT: {"hypothesis_template": "{}"},
    "question-answering": {"max_seq_len": 512},
}


@pytest.mark.parametrize("task", TASKS)
def test_answer_a_text_in_one_run_with_512_tokens_as_alone(
    task: str, batching: Any, tmp_path: Path
) -> None:
    served = serve(tmp_path, task, {**CHANGES.get(task, {}), "max_position_embeddings": 512})
    client = of_our_backend(served)
    for each in (served.client, client):  # add no special tokens, so that a word is one token
        each.tokenizer.tokenizer.post_processor = processors.Sequence([])
    parameters = client.read_parameters(SIZES.get(task, {}))
    instances = [[INSTANCES.get(task, str)(text)] for text in ("cat", LONG * 10)]
    names = {spec.name for spec in client.model.inputs}
    calls = []
    for index, instance in enumerate(instances):
        tensors = client.prepare(instance, parameters)
        feed = {name: tensors[name] for name in names & tensors.keys()}
        calls.append(batching.Call(index, feed, client.outputs))
    shapes = []

    def run(feed: dict[str, Any], _: Any) -> dict[str, Any]:
        shapes.append(feed["input_ids"].shape)
        return served.infer(feed)

    by_token = {spec.name for spec in client.model.outputs if spec.shape[0] == -1}
    dtypes = dict.fromkeys({"input_ids", *FILLED} & names, np.dtype(np.int64))
    results = batching.run_merged(run, batching.Ragged(dtypes, by_token), calls)
    (rows, shortest), (more_rows, longest) = (call.feed["input_ids"].shape for call in calls)
    assert (shortest, longest) == (2 if task in INSTANCES else 1, 512)
    assert shapes == [(rows + more_rows, longest)]
    for instance, result in zip(instances, results, strict=True):
        alone = served.infer(served.client.prepare(instance, parameters))
        for name in client.outputs:
            np.testing.assert_allclose(result[name], alone[name], rtol=0, atol=1e-5)


CAT = {"candidate_labels": ["cat"]}
Refused = tuple[str, list[Any], dict[str, Any], type[ServingError], str]
REFUSED: list[Refused] = [
    (
        "fill-mask",
        ["the [MASK] sat"],
        {"targets": ["cat", "catamaran"]},
        InvalidRequest,
        "'catamaran'",
    ),
    ("fill-mask", ["the [MASK]", "the cat"], {}, DecodingError, "instance 1"),
    ("fill-mask", ["cat " * 50 + "[MASK]"], {}, DecodingError, "24"),
    ("token-classification", [LONG], {"stride": 22}, DecodingError, "instance 0"),
    ("token-classification", ["a", "a" * 300_000], {"stride": 2}, DecodingError, "300000"),
    ("token-classification", ["a " * 4_000], {"stride": 21}, DecodingError, "3979"),
    (ZERO_SHOT, [{"text": "a", **CAT}, "a"], {}, DecodingError, "instance 1"),
    (ZERO_SHOT, ["a"], {"candidate_labels": ["cat"] * 101}, DecodingError, "101"),
    (ZERO_SHOT, ["a"] * 32, {"candidate_labels": ["b" * 3000] * 100}, PayloadTooLarge, r"\d"),
    *(
        (
            ZERO_SHOT,
            ["a"],
            CAT | {"hypothesis_template": template},
            InvalidRequest,
            "hypothesis_template",
        )
        for template in ("about", "{} or {}", "{}" * 500, "{}" + "a" * 1000, 1, ["{}"])
    ),
    (
        "text-ranking",
        [{"query": "a", "documents": ["b"] * size} for size in (1, 1001)],
        {},
        DecodingError,
        "1001",
    ),
    (
        "question-answering",
        [{"question": "the cat " * 7, "context": CONTEXT}],
        {},
        DecodingError,
        "instance 0",
    ),
    *(
        (task, [], {name: value}, InvalidRequest, name)
        for task, names in (
            ("embedding", ["dimensions"]),
            ("question-answering", ["doc_stride", "max_seq_len"]),
        )
        for name, value in itertools.product(names, (10**30, 1e30, "1" + "0" * 30))
    ),
    ("embedding", ["a"], {"dimensions": 33}, InvalidRequest, "dimensions"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}: {case[4]}")
def test_refuse_an_instance_or_a_parameter_beyond_the_limits(
    case: Refused, served_with: Serve
) -> None:
    task, instances, parameters, error, name = case
    served, _ = served_with(task, **CHANGES.get(task, {}))
    with pytest.raises(error, match=name):
        served.predict(instances, **parameters)
