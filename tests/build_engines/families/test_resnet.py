"""ResNets from random weights, a checkpoint of transformers or a file of torchvision's."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn import functional

from build_engines.building.model import build, export
from build_engines.demos.resnet import DIGITS
from build_engines.errors import BuildError, UsageError
from build_engines.families.resnet import RESNET50, client_of
from build_engines.families.resnet_network import from_torchvision, random_network, write_onnx
from build_engines.model_folder.stored import open_model
from build_engines.request import Request
from clients.resnet import Client
from serving.codecs import IMAGE, Limits
from tests.build_engines.models import config_of, session
from tests.clients.image_models import save_classifier as save_image_classifier
from tests.clients.image_models import torchvision_state
from tests.support.harness import ROOT

FOLDER = ROOT / "model_repository" / "resnet"
WEIGHTS = FOLDER / "1" / "model.onnx"


@pytest.fixture(scope="session")
def resnet50(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, _ = build(Request("resnet50", "random", repository=tmp_path_factory.mktemp("repository")))
    return folder


def test_an_exported_network_equals_torchs_with_its_statistics_in_use(tmp_path: Path) -> None:
    network = random_network(DIGITS.layers, 10)
    network.train()
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (16, 3, 64, 64), generator=generator, dtype=torch.uint8)
    images = (pixels / 255 - 0.5) / 0.25
    with torch.no_grad():
        network(images)  # moves the running means of the batch norms away from 0 and 1
        expected = network.eval()(images).logits.numpy()
    write_onnx(network, client_of(Request("resnet"), DIGITS, 10), tmp_path / "1" / "model.onnx")
    actual = session(tmp_path / "1" / "model.onnx").run(["logits"], {"input": pixels.numpy()})[0]
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["model.onnx"]


def test_resnet50_has_the_size_of_the_original(resnet50: Path) -> None:
    assert sum(p.numel() for p in random_network(RESNET50.layers, 1000).parameters()) == 25_557_032
    assert 100e6 < (resnet50 / "1" / "model.onnx").stat().st_size < 105e6
    assert len((resnet50 / "labels.txt").read_text().splitlines()) == 1000


def test_resnet50_answers_through_its_client_and_equals_torch(resnet50: Path) -> None:
    client = open_model("resnet50", resnet50.parent).client()
    assert client
    image = IMAGE.from_bytes((resnet50 / "example.png").read_bytes(), Limits())
    inputs = client.preprocess([image, image.rotate(90)])
    assert inputs["input"].shape == (2, 3, 224, 224)
    assert inputs["input"].dtype == np.uint8
    logits = session(resnet50 / "1" / "model.onnx").run(["logits"], inputs)[0]
    normalized = client_of(Request("resnet50"), RESNET50, 1000).preprocess([image, image.rotate(90)])["images"]
    with torch.inference_mode():
        expected = random_network(RESNET50.layers, 1000)(torch.from_numpy(normalized)).logits.numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-3)
    predictions = client.postprocess({"logits": logits}, inputs, [image, image], {"top_k": 5})
    assert [len(p["classes"]) for p in predictions] == [5, 5]
    assert predictions[0]["classes"][0]["label"].startswith("class_")


def test_resnet50s_configuration_is_parsed_and_its_settings_are_the_clients(resnet50: Path) -> None:
    known = {p.name for p in (*Client.settings, *Client.parameters)} | {"client", "cpu_engine"}
    for folder in (resnet50, FOLDER):
        for name in ("config.pbtxt", "configs/cpu.pbtxt"):
            assert set(config_of(folder / name).parameters) <= known


SMALL = {"embedding_size": 8, "hidden_sizes": (16, 24, 32, 40), "depths": (2, 1, 1, 1)}


def torchvision_forward(state: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """A ResNet by torchvision's names and its published structure (v1.5: the stride is in the 3×3 convolution)."""

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        w, b, mean, var = (state[f"{name}.{k}"] for k in ("weight", "bias", "running_mean", "running_var"))
        return functional.batch_norm(x, mean, var, w, b)

    def block(place: str, x: torch.Tensor, stride: int) -> torch.Tensor:
        kernels = [k for k in (1, 2, 3) if f"{place}.conv{k}.weight" in state]
        strided = 2 if len(kernels) == 3 else 1
        y = x
        for k in kernels:
            weight = state[f"{place}.conv{k}.weight"]
            y = functional.conv2d(y, weight, stride=stride if k == strided else 1, padding=weight.shape[-1] // 2)
            y = norm(f"{place}.bn{k}", y)
            y = y.relu() if k != kernels[-1] else y
        if f"{place}.downsample.0.weight" in state:
            x = norm(
                f"{place}.downsample.1", functional.conv2d(x, state[f"{place}.downsample.0.weight"], stride=stride)
            )
        return (x + y).relu()

    x = norm("bn1", functional.conv2d(x, state["conv1.weight"], stride=2, padding=3)).relu()
    x = functional.max_pool2d(x, 3, 2, 1)
    for stage in range(1, 5):
        for index in range(9):
            if f"layer{stage}.{index}.conv1.weight" in state:
                x = block(f"layer{stage}.{index}", x, 2 if stage > 1 and index == 0 else 1)
    return x.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


@pytest.mark.parametrize("bottleneck", [True, False])
def test_torchvisions_weights_answer_as_torchvisions_structure_does(bottleneck: bool, tmp_path: Path) -> None:
    state = torchvision_state(bottleneck)
    torch.save(state, tmp_path / "resnet.pth")
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        ours = from_torchvision(tmp_path / "resnet.pth")(images).logits
        torch.testing.assert_close(ours, torchvision_forward(state, images), atol=1e-4, rtol=1e-4)


def test_a_torchvision_file_becomes_a_model_folder_of_the_size_asked_for(tmp_path: Path) -> None:
    torch.save(torchvision_state(True), tmp_path / "resnet.pth")
    labels = tmp_path / "names.txt"
    labels.write_text("".join(f"name {number}\n" for number in range(7)))
    request = Request(
        "birds", str(tmp_path / "resnet.pth"), client="resnet", labels=labels, size=96, repository=tmp_path / "models"
    )
    folder, _ = build(request)
    config = config_of(folder / "config.pbtxt")
    assert [list(config.input[0].dims), list(config.output[0].dims)] == [[3, 96, 96], [7]]
    assert config.parameters["interpolation"].string_value == "bilinear"
    assert (folder / "labels.txt").read_text() == labels.read_text()


def test_a_checkpoints_labels_and_preparation_are_read(tmp_path: Path) -> None:
    config = transformers.ResNetConfig(**SMALL, id2label={0: "cat", 1: "dog"}, label2id={"cat": 0, "dog": 1})
    transformers.ResNetForImageClassification(config).save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "checkpoint/preprocessor_config.json").write_text(
        json.dumps(
            {
                "crop_pct": 0.9,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.2, 0.2, 0.2],
                "resample": 2,
                "size": {"shortest_edge": 64},
            }
        )
    )
    model_spec = export(Request("own"), tmp_path / "checkpoint", tmp_path / "model")
    assert (model_spec.client, model_spec.inputs[0].shape, model_spec.outputs[0].shape) == ("resnet", (3, 64, 64), (2,))
    assert (model_spec.inputs[0].datatype, "mean" in model_spec.settings) == ("UINT8", False)
    assert (model_spec.settings["resize_to"], model_spec.settings["interpolation"]) == ("71", "bilinear")
    assert (tmp_path / "model/labels.txt").read_text() == "cat\ndog\n"
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 64, 64), dtype=np.uint8)
    network = transformers.ResNetForImageClassification.from_pretrained(tmp_path / "checkpoint").eval()
    with torch.inference_mode():
        expected = network((torch.from_numpy(pixels) / 255 - 0.5) / 0.2).logits.numpy()
    (actual,) = session(tmp_path / "model/1/model.onnx").run(None, {"input": pixels})
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_a_mean_that_is_set_is_the_networks_and_not_that_of_a_network_with_its_own(tmp_path: Path) -> None:
    torch.save(torchvision_state(False), tmp_path / "resnet.pth")
    pixels = np.random.default_rng(0).integers(0, 256, (1, 3, 64, 64), dtype=np.uint8)
    answers = []
    for settings in ({}, {"mean": "0.1", "std": "0.5"}):
        request = Request("own", client="resnet", size=64, settings=settings)
        export(request, tmp_path / "resnet.pth", tmp_path / "model")
        answers.append(session(tmp_path / "model/1/model.onnx").run(None, {"input": pixels})[0])
    assert np.abs(answers[0] - answers[1]).max() > 0.1
    with pytest.raises(UsageError, match="--set mean: the network normalizes"):
        build(Request("resnet", settings={"mean": "0.1"}, repository=tmp_path))


SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
OTHERS = [
    (transformers.RobertaForMaskedLM, transformers.RobertaConfig(**SHAPE, vocab_size=50), "holds a RobertaForMaskedLM"),
    (transformers.BertModel, transformers.BertConfig(**SHAPE, vocab_size=50), "holds a BertModel"),
    (transformers.ResNetModel, transformers.ResNetConfig(**SMALL), "holds a ResNetModel"),
]


@pytest.mark.parametrize(("network", "config", "told"), OTHERS, ids=["roberta", "bert", "headless"])
def test_the_architecture_in_config_json_decides_and_another_one_is_refused(
    network: Any, config: Any, told: str, tmp_path: Path
) -> None:
    network(config).save_pretrained(tmp_path / "checkpoint")
    with pytest.raises(BuildError, match=rf"{told} by its config.json, and this builds networks named"):
        build(Request("own", str(tmp_path / "checkpoint"), client="resnet", repository=tmp_path / "models"))
    with pytest.raises(BuildError, match="is a folder, and a YOLOv5 is one file"):
        build(Request("own", str(tmp_path / "checkpoint"), client="yolov5", repository=tmp_path / "models"))
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda tensors: tensors.pop("classifier.1.bias"), "lacks classifier.1.bias; was it saved for another"),
        (lambda tensors: tensors.update(more=torch.zeros(1)), "has what the network does not take: more;"),
    ],
)
def test_a_weight_that_is_missing_or_left_over_ends_the_build(change: Any, told: str, tmp_path: Path) -> None:
    save_image_classifier(tmp_path, "resnet")
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BuildError, match=told):
        build(Request("own", str(tmp_path), repository=tmp_path / "models"))


@pytest.mark.parametrize("content", [{"layer1.0.conv1.weight": torch.zeros(1)}, {"fc.weight": torch.zeros(1)}, 3])
def test_another_file_of_tensors_is_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises((BuildError, KeyError)):
        from_torchvision(tmp_path / "other.pth")
