"""Two models as one: which can follow one another, and whose parameters are whose."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from PIL import Image
from tritonclient.grpc import model_config_pb2

from clients.base import Model, TensorSpec
from clients.resnet import Client as Classifier
from serving.errors import InvalidRequest, ModelNotFound, ModelNotReady
from serving.inference.registry import Registry
from serving.inference.served_model import ServedModel
from serving.triton.gateway import IndexEntry

IMAGE = 'input { name: "x" data_type: TYPE_FP32 dims: [3, 64, 64] }'
CLASSIFIER = f'max_batch_size: 8 {IMAGE} output {{ name: "y" data_type: TYPE_FP32 dims: [10] }}'
DETECTOR = f'max_batch_size: 8 {IMAGE} output {{ name: "y" data_type: TYPE_FP32 dims: [252, 15] }}'


def parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'


class Gateway:
    """A stand-in for Triton with these configurations loaded."""

    def __init__(self, configs: Mapping[str, str], state: str = "READY") -> None:
        self.configs, self.state = configs, state

    def index(self) -> list[IndexEntry]:
        return [IndexEntry(name, "1", "READY" if name == "reader" else self.state, "") for name in self.configs]

    def config(self, name: str) -> Any:
        return text_format.Parse(self.configs[name], model_config_pb2.ModelConfig())


def registry(tmp_path: Path, then: str, state: str = "READY", **configs: str) -> Registry:
    """`reader` is a detector followed by the model that `then` names."""
    first = f"{DETECTOR} {parameter('client', 'yolov5')} {parameter('then', then)}"
    made: Any = Gateway({"reader": first} | configs, state)
    return Registry(made, [tmp_path])


def classifier(*more: str) -> str:
    return " ".join([CLASSIFIER, parameter("client", "resnet"), *more])


def test_the_model_that_follows_is_found_by_its_name(tmp_path: Path) -> None:
    served = registry(tmp_path, "digits", digits=classifier()).get("reader")
    assert served.then is not None
    assert isinstance(served.then.client, Classifier)
    assert served.describe()["then"] == "digits"


def test_the_parameters_of_both_are_its_own(tmp_path: Path) -> None:
    served = registry(tmp_path, "digits", digits=classifier(parameter("top_k", "2"))).get("reader")
    defaults = {each["name"]: each["default"] for each in served.describe()["parameters"]}
    assert defaults["top_k"] == 2
    assert defaults["confidence"] == 0.25
    own, later = served.read_parameters({"confidence": "0.5", "top_k": "3"})
    assert own["confidence"] == 0.5
    assert "top_k" not in own
    assert later == {"top_k": "3"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topk": 1}, "'topk'; model 'reader' takes: classes, confidence, iou, max_detections, top_k"),
        ({"top_k": 0}, "parameter 'top_k': 0 is not"),
        ({"iou": 2}, r"parameter 'iou': 2\.0 is not"),
    ],
)
def test_a_wrong_parameter_of_either_is_refused_before_anything_runs(
    tmp_path: Path, given: Mapping[str, Any], message: str
) -> None:
    served = registry(tmp_path, "digits", digits=classifier()).get("reader")
    with pytest.raises(InvalidRequest, match=message):
        served.read_parameters(given)


def test_a_model_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"'digits'.*reader"):
        registry(tmp_path, "digits").get("reader")


def test_a_model_that_is_not_ready_yet_is_asked_for_again_at_the_next_call(tmp_path: Path) -> None:
    found = registry(tmp_path, "digits", state="LOADING", digits=classifier())
    with pytest.raises(ModelNotReady, match="'digits' is not ready"):
        found.get("reader")
    found.gateway.state = "READY"  # type: ignore[attr-defined]
    assert found.get("reader").then is not None


def test_a_chain_has_two_models(tmp_path: Path) -> None:
    second = classifier(parameter("then", "reader"))
    with pytest.raises(InvalidRequest, match="'digits', itself a chain: a chain has two"):
        registry(tmp_path, "digits", digits=second).get("reader")


def test_what_follows_takes_what_the_first_finds(tmp_path: Path) -> None:
    own = "from clients.base import ModelClient\nfrom serving.codecs import TEXT\n\n\nclass Client(ModelClient):\n"
    own += "    codec, example = TEXT, b''\n    preprocess = postprocess = None\n"
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/client.py").write_text(own)
    with pytest.raises(InvalidRequest, match="followed by 'texts', which takes texts, and not images"):
        registry(tmp_path, "texts", texts=CLASSIFIER).get("reader")
    with pytest.raises(InvalidRequest, match="'tensors' has no client"):
        registry(tmp_path, "tensors", tensors=CLASSIFIER).get("reader")


def test_in_multi_model_mode_it_says_why_it_cannot(tmp_path: Path) -> None:
    alone = registry(tmp_path, "digits").load("reader", tmp_path)
    with pytest.raises(InvalidRequest, match=r"asks 'digits' .* serve both without SAGEMAKER_MULTI_MODEL"):
        alone.read_parameters({})


def test_a_client_that_finds_no_pieces_cannot_begin_a_chain(tmp_path: Path) -> None:
    ports = (TensorSpec("x", "FP32", (3, 8, 8)),), (TensorSpec("y", "FP32", (10,)),)
    client = Classifier(Model("digits", tmp_path, *ports, 8))
    calls: Sequence[Any] = (lambda: client.pieces(Image.new("RGB", (8, 8)), {}), lambda: client.joined({}, []))
    for call in calls:
        with pytest.raises(InvalidRequest, match="'digits' finds no pieces"):
            call()
    assert ServedModel(client.model, client).read_parameters({"top_k": 1}) == ({"top_k": 1}, {})
