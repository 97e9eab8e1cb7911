"""Tests folders of transformers and sentence-transformers: their task, their modules, their
tokenizer, and folders that are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import helper
from safetensors.torch import load_file, save_file

from build_engines.build import build
from build_engines.errors import BuildError, UsageError
from build_engines.families.text_network import load_network
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from serving.errors import InvalidRequest
from serving.repository.model_config import read_config
from tests.build_engines.models import exported, save
from tests.clients.text_models import (
    FAMILIES,
    FROM_PADDING,
    LIMIT,
    SMALL,
    TEXTS,
    Served,
    save_checkpoint,
    save_tokenizer,
)
from tests.support.harness import parsed

pytestmark = pytest.mark.full


def change(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content | values))


def modules(*kinds: str) -> Callable[[Path], Any]:
    """Return a function that writes modules.json, with a folder for each module but the first."""
    listed = [
        {"type": f"x.{kind}", "path": f"{at}_{kind}" if at else ""} for at, kind in enumerate(kinds)
    ]
    return lambda folder: (folder / "modules.json").write_text(json.dumps(listed))


def built(checkpoint: Path, folder: Path, **options: Any) -> ModelSpec:
    return exported(Request("own", **options), checkpoint, folder)


@pytest.mark.parametrize(
    ("task", "family", "changes", "asked", "settings"),
    [
        ("embedding", "electra", {}, "", {"task": "embedding"}),
        ("fill-mask", "roberta", {}, "embedding", {"task": "embedding"}),
        ("token-classification", "distilbert", {}, "", {"task": "token-classification"}),
        ("question-answering", "bert", {}, "", {"task": "question-answering"}),
        ("text-ranking", "bert", {"num_labels": 1}, "", {"task": "text-classification"}),
        ("text-ranking", "bert", {"num_labels": 1}, "text-ranking", {"task": "text-ranking"}),
    ],
)
def test_choose_the_task_by_the_flag_or_the_config(
    task: str,
    family: str,
    changes: dict[str, Any],
    asked: str,
    settings: dict[str, str],
    tmp_path: Path,
) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", task, family, **changes)
    assert built(checkpoint, tmp_path / "model", task=asked).settings == settings | {
        "pad_to_multiple_of": "8",
        "ragged_batches": str(LIMIT),
    }


def check_ranking(
    folder: Path, spec: ModelSpec, checkpoint: Path, function: Callable[[Any], Any]
) -> None:
    """Assert that a score is this function of the logit that transformers computes."""
    assert spec.settings["task"] == "text-ranking"
    served = Served(folder, **spec.settings)
    (prediction,) = served.predict([{"query": "a", "documents": ["the cat"]}])
    network = transformers.AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    logit = network(**tokenizer("a", "the cat", return_tensors="pt")).logits
    expected = pytest.approx(function(logit).item(), abs=1e-4)
    assert prediction["ranking"][0]["score"] == expected


def test_rank_with_a_cross_encoder_of_sentence_transformers(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "text-ranking", num_labels=1)
    own = {"activation_fn": "torch.nn.modules.linear.Identity"}
    change(checkpoint / "config.json", sentence_transformers=own, id2label={"0": "LABEL_0"})
    check_ranking(
        tmp_path / "model", built(checkpoint, tmp_path / "model"), checkpoint, torch.nn.Identity()
    )


def cross_encoder(folder: Path, activation: str) -> Path:
    """Write the files that the CrossEncoder of sentence-transformers 6.2 writes."""
    checkpoint = save_checkpoint(folder, "text-ranking", num_labels=1)
    change(
        folder / "config_sentence_transformers.json",
        model_type="CrossEncoder",
        activation_fn=f"torch.nn.modules.{activation}",
        default_prompt_name=None,
        prompts={},
    )
    modules("Transformer")(folder)
    sentence = {"transformer_task": "sequence-classification", "module_output_name": "scores"}
    change(folder / "sentence_bert_config.json", **sentence)
    return checkpoint


@pytest.mark.parametrize(
    ("activation", "function"),
    [("linear.Identity", torch.nn.Identity()), ("activation.Sigmoid", torch.sigmoid)],
)
@pytest.mark.parametrize("task", ["", "text-ranking"])
def test_rank_with_a_cross_encoder_that_version_6_wrote(
    activation: str, function: Callable[[Any], Any], task: str, tmp_path: Path
) -> None:
    checkpoint = cross_encoder(tmp_path / "checkpoint", activation)
    spec = built(checkpoint, tmp_path / "model", task=task)
    check_ranking(tmp_path / "model", spec, checkpoint, function)


def test_refuse_a_cross_encoder_with_steps_beside_its_network(tmp_path: Path) -> None:
    checkpoint = cross_encoder(tmp_path / "checkpoint", "activation.Tanh")
    built(checkpoint, tmp_path / "model")
    with pytest.raises(InvalidRequest, match=r"activation\.Tanh"):
        Served(tmp_path / "model", task="text-ranking")
    change(checkpoint / "config_sentence_transformers.json", default_prompt_name="query")
    with pytest.raises(BuildError, match="default_prompt_name"):
        built(checkpoint, tmp_path / "prompted")
    modules("Transformer", "Dense")(checkpoint)
    with pytest.raises(
        BuildError, match=r"Transformer, Dense, .* text-ranking .* supports Transformer alone"
    ):
        built(checkpoint, tmp_path / "dense")


def drop(folder: Path, name: str) -> None:
    file = folder / "model.safetensors"
    save_file(
        {key: value for key, value in load_file(file).items() if name not in key},
        file,
        {"format": "pt"},
    )


def add(folder: Path, name: str) -> None:
    file = folder / "model.safetensors"
    save_file(load_file(file) | {name: torch.zeros(2)}, file, {"format": "pt"})


def architecture(*names: str, **values: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder / "config.json", architectures=names, **values)


def network(name: str, **sizes: int | list[int]) -> Callable[[Path], Any]:
    """Return a function that saves a small network with this name."""

    def save(folder: Path) -> None:
        config = getattr(transformers, f"{name}Config")(vocab_size=99, **sizes)
        getattr(transformers, f"{name}Model")(config).save_pretrained(folder)

    return save


SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2}
# the tracer fixes its attention to the length of the example
LONGFORMER = network(
    "Longformer", attention_window=[8], max_position_embeddings=64, **SIZES, **HEADS
)
# its convolutions extend beyond the ends of the texts
CONVBERT = network("ConvBert", embedding_size=16, **SIZES, **HEADS)
# it has Fourier transforms, which torch's tracer cannot export
FNET = network("FNet", **SIZES)
XLM = network("XLM", emb_dim=16, n_layers=1, n_heads=2)


def test_build_the_encoder_of_t5(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "embedding", "roberta")
    size = json.loads((checkpoint / "config.json").read_text())["vocab_size"]
    config = transformers.T5Config(
        vocab_size=size, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2
    )
    transformers.T5EncoderModel(config).save_pretrained(checkpoint)
    assert built(checkpoint, tmp_path / "model").settings["task"] == "embedding"


TOKENS, WEIGHTED = "token-classification", {"pooling_mode_weightedmean_tokens": True}


@pytest.mark.parametrize(
    ("task", "spoil", "asked", "message"),
    [
        (
            "text-classification",
            lambda folder: drop(folder, "layer.1.output.dense.weight"),
            "",
            "layer.1.output",
        ),
        ("text-classification", lambda folder: drop(folder, "classifier"), "", "classifier"),
        (TOKENS, lambda folder: add(folder, "roberta.encoder.layer.2.x"), "", "roberta.encoder"),
        (TOKENS, lambda folder: None, "embedding", "classifier"),
        (TOKENS, lambda folder: None, "fill-mask", "token-classification"),
        ("embedding", architecture("RobertaForMultipleChoice"), "", "RobertaForMultipleChoice"),
        ("embedding", architecture("GPT2LMHeadModel"), "", "GPT2LMHeadModel"),
        ("embedding", architecture("T5Model", is_encoder_decoder=True), "", "T5Model"),
        ("embedding", architecture("T5Model", is_encoder_decoder=True), "embedding", "T5Model"),
        ("embedding", architecture(), "", "--task"),
        ("embedding", LONGFORMER, "", "LongformerModel"),
        ("embedding", CONVBERT, "", "padding"),
        ("embedding", XLM, "", "types of tokens"),
        ("embedding", FNET, "", "fft.* build the ONNX file"),
        (
            "embedding",
            lambda folder: change(folder / "config.json", vocab_size=999),
            "",
            "word_embeddings",
        ),
        ("embedding", modules("Transformer", "SpladePooling"), "", "SpladePooling"),
        (
            "embedding",
            modules("Transformer", "Pooling", "Normalize", "Dense"),
            "",
            "Pooling, Normalize, Dense",
        ),
        (
            "embedding",
            modules("Transformer", "Dense", "Pooling"),
            "",
            "Transformer, Dense, Pooling",
        ),
        (
            "embedding",
            lambda folder: change(folder / "1_Pooling/config.json", **WEIGHTED),
            "",
            "weightedmean;",
        ),
    ],
)
def test_refuse_incomplete_folders(
    task: str, spoil: Callable[[Path], Any], asked: str, message: str, tmp_path: Path
) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", task, "roberta")
    spoil(checkpoint)
    with pytest.raises(BuildError, match=message):
        built(checkpoint, tmp_path / "model", task=asked)


def test_build_an_older_folder_of_several_weight_files(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "fill-mask")
    built(checkpoint, tmp_path / "expected")
    tensors = sorted(load_file(checkpoint / "model.safetensors").items())
    (checkpoint / "model.safetensors").unlink()
    shards: dict[str, str] = {}
    for number, part in enumerate((tensors[::2], tensors[1::2])):
        name = f"pytorch_model-{number + 1:05}-of-00002.bin"
        torch.save(dict(part), checkpoint / name)
        shards |= dict.fromkeys(dict(part), name)
    index = {"metadata": {"total_size": 1}, "weight_map": shards}
    change(checkpoint / "pytorch_model.bin.index.json", **index)
    built(checkpoint, tmp_path / "model")
    model, expected = (tmp_path / name / "1/model.onnx" for name in ("model", "expected"))
    assert model.read_bytes() == expected.read_bytes()


def test_refuse_a_tokenizer_of_another_network(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "embedding", "bert")
    save_checkpoint(tmp_path / "other", "embedding", "roberta")
    shutil.copyfile(tmp_path / "other" / "tokenizer.json", checkpoint / "tokenizer.json")
    with pytest.raises(BuildError, match="tokenizer"):
        built(checkpoint, tmp_path / "model")


def test_convert_other_vocabularies_to_tokenizer_json(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "embedding", "distilbert")
    (checkpoint / "tokenizer.json").unlink()
    (checkpoint / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n")
    change(checkpoint / "tokenizer_config.json", tokenizer_class="DistilBertTokenizer")
    model_spec = built(checkpoint, tmp_path / "model")
    client = Served(tmp_path / "model", **model_spec.settings).client
    assert client.prepare(["the cat"], client.defaults)["input_ids"][0, :4].tolist() == [2, 5, 6, 3]


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_build_sentence_transformers_with_all_their_modules(kind: str, tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "embedding", "roberta")
    modules("Transformer", "Pooling", "Dense", "Normalize")(checkpoint)
    change(
        checkpoint / "1_Pooling/config.json",
        pooling_mode_cls_token=False,
        pooling_mode_mean_tokens=True,
    )
    change(
        checkpoint / "2_Dense/config.json",
        in_features=32,
        out_features=8,
        activation_function="torch.nn.Tanh",
    )
    change(
        checkpoint / "config_sentence_transformers.json",
        prompts={"query": "the cat "},
        default_prompt_name="query",
    )
    change(checkpoint / f"sentence_{kind}_config.json", max_seq_length=12, do_lower_case=False)
    matrix, bias = torch.randn(8, 32), torch.randn(8)
    save_file(
        {"linear.weight": matrix, "linear.bias": bias}, checkpoint / "2_Dense/model.safetensors"
    )
    model_spec = built(checkpoint, tmp_path / "model")
    network = transformers.AutoModel.from_pretrained(checkpoint).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    ours = Served(tmp_path / "model", **model_spec.settings).predict(TEXTS)
    for text, prediction in zip(TEXTS, ours, strict=True):
        encoded = tokenizer(f"the cat {text}", return_tensors="pt", truncation=True, max_length=12)
        with torch.no_grad():
            wanted = torch.tanh(matrix @ network(**encoded).last_hidden_state[0].mean(0) + bias)
        np.testing.assert_allclose(prediction["embedding"], wanted / wanted.norm(), atol=1e-4)


CLASSES = "text-classification"


def build_file(file: Path, checkpoint: Path | None, task: str = CLASSES, **options: Any) -> Path:
    """Build a model from an ONNX file with the checkpoint's tokenizer. Return its folder."""
    named: dict[str, Any] = {"client": "bert", "task": task, "tokenizer": checkpoint} | options
    folder, _ = build(Request("own", str(file), repository=file.parent / "repository", **named))
    return folder


def test_use_the_named_tokenizer_for_an_onnx_file(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", CLASSES, num_labels=3)
    whole = built(checkpoint, tmp_path / "whole")
    file = tmp_path / "whole/1/model.onnx"
    folder = build_file(file, checkpoint)
    assert (folder / "tokenizer/tokenizer.json").is_file()
    wanted = Served(tmp_path / "whole", **whole.settings).predict(TEXTS[:1])
    assert Served(folder, task=CLASSES).predict(TEXTS[:1]) == wanted
    with pytest.raises(UsageError, match="--tokenizer"):
        build_file(file, None)
    with pytest.raises(UsageError, match="--client text"):
        build_file(file, checkpoint, client="")
    (checkpoint / "tokenizer.json").write_text("{}")
    with pytest.raises(BuildError, match="cannot be read"):
        build_file(file, checkpoint)


@pytest.mark.parametrize("content", ["no JSON", "[]", "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_refuse_a_broken_file_of_a_tokenizer(name: str, content: str, tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", CLASSES, num_labels=3)
    built(checkpoint, tmp_path / "whole")
    (checkpoint / name).write_text(content)
    with pytest.raises(BuildError, match=f"{name}.* not (a )?JSON"):
        build_file(tmp_path / "whole/1/model.onnx", checkpoint)


def test_send_int32_tokens_to_a_file_that_takes_them(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", CLASSES, num_labels=3)
    whole = built(checkpoint, tmp_path / "whole")
    model = onnx.load(tmp_path / "whole/1/model.onnx")
    names = {port.name for port in model.graph.input}
    for node in model.graph.node:
        node.input[:] = [f"{name}_64" if name in names else name for name in node.input]
    for port in model.graph.input:
        port.type.tensor_type.elem_type = onnx.TensorProto.INT32
        cast = helper.make_node("Cast", [port.name], [f"{port.name}_64"], to=onnx.TensorProto.INT64)
        model.graph.node.insert(0, cast)
    onnx.save(model, tmp_path / "int32.onnx")
    folder = build_file(tmp_path / "int32.onnx", checkpoint)
    wanted = Served(tmp_path / "whole", **whole.settings).predict(TEXTS[:1])
    assert Served(folder, task=CLASSES).predict(TEXTS[:1]) == wanted


def file_with_scores(checkpoint: Path, folder: Path, operator: str) -> Path:
    """Write the checkpoint as an ONNX file whose logits go through the operator."""
    built(checkpoint, folder)
    file = folder / "1" / "model.onnx"
    model = onnx.load(file)
    name = model.graph.output[0].name
    model.graph.output[0].name = "scores"
    model.graph.node.append(helper.make_node(operator, [name], ["end"]))
    model.graph.node.append(helper.make_node("Identity", ["end"], ["scores"]))
    onnx.save(model, file)
    return file


@pytest.mark.parametrize("function", ["softmax", "sigmoid"])
def test_keep_the_scores_of_texts_that_the_file_computes(function: str, tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", CLASSES, num_labels=3)
    file = file_with_scores(checkpoint, tmp_path / "whole", function.capitalize())
    folder = build_file(file, checkpoint)
    parameters = read_config(folder, "gpu").parameters
    settings = {name: value.string_value for name, value in parameters.items()}
    ours = Served(folder, **settings).predict(TEXTS)
    pipeline = transformers.pipeline(CLASSES, str(checkpoint), top_k=3, function_to_apply=function)
    for prediction, wanted in zip(ours, pipeline(TEXTS), strict=True):
        assert [each["label"] for each in prediction["classes"]] == [
            each["label"] for each in wanted
        ]
        scores = [each["score"] for each in prediction["classes"]]
        assert scores == pytest.approx([each["score"] for each in wanted], abs=1e-4)


def save_words(path: Path, outputs: str, ending: str) -> Path:
    """Write a file whose logits of each token are three multiples of its id, followed by these
    operators."""
    graph = parsed(f"""words (int64[batch, tokens] input_ids) => ({outputs}) {{
        last = Constant <value_ints = [-1]> ()
        columns = Constant <value_floats = [0.0, 0.5, 1.0]> ()
        ids = Unsqueeze (input_ids, last)
        floats = Cast <to = 1> (ids)
        each = Mul (floats, columns)
        {ending}
    }}""").graph
    return save(graph, path)


TAGS = ("token-classification", "float[batch, tokens, 3] logits", "logits = {} (each)")
SPANS = "float[batch, tokens] start_logits, float[batch, tokens] end_logits"
ANSWERS = (
    "question-answering",
    f"float[batch, tokens, 3] hidden, {SPANS}",
    """hidden = Identity (each) all = {} (each)
    start, unused, end = Split <axis = 2> (all)
    start_logits = Squeeze (start, last) end_logits = Squeeze (end, last)""",
)


@pytest.mark.parametrize(("task", "outputs", "ending"), [TAGS, ANSWERS])
def test_refuse_scores_of_texts_where_the_client_reads_logits(
    task: str, outputs: str, ending: str, tmp_path: Path
) -> None:
    save_tokenizer(tmp_path / "tokenizer", "pieces")
    has_scores = save_words(tmp_path / "scores.onnx", outputs, ending.format("Softmax"))
    message = "'(start_)?logits' comes from a softmax .* export the network without this last"
    with pytest.raises(BuildError, match=message):
        build_file(has_scores, tmp_path / "tokenizer", task)
    has_logits = save_words(tmp_path / "logits.onnx", outputs, ending.format("LeakyRelu"))
    assert build_file(has_logits, tmp_path / "tokenizer", task)


@pytest.mark.parametrize("family", ["MPNet", "XLMRobertaXL", "Xmod", "IBert", "Luke", "Esm"])
def test_shorten_texts_if_positions_start_after_the_padding(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"type_vocab_size": 1, "languages": ["en_XX"], "default_language": "en_XX"}
    monkeypatch.setitem(FAMILIES, family, (family, "bytes", SMALL | FROM_PADDING | own))
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "embedding", family)
    change(checkpoint / "tokenizer_config.json", model_max_length=10**30)
    served = Served(tmp_path / "model", **built(checkpoint, tmp_path / "model").settings)
    (prediction,) = served.predict(["the cat " * 40])
    assert (prediction["truncated"], len(prediction["embedding"])) == (True, 32)
    assert served.client.tokenizer.max_length == LIMIT
    # with a configuration that has no position table
    change(tmp_path / "model/tokenizer/config.json", position_embedding_type="rotary")
    assert Served(tmp_path / "model").client.tokenizer.max_length == LIMIT + 2


def test_refuse_a_network_too_large_for_one_file(tmp_path: Path) -> None:
    checkpoint = save_checkpoint(tmp_path / "checkpoint", "embedding", "electra")
    with pytest.raises(BuildError, match="weights"):
        load_network(checkpoint, "embedding", largest=1000)
