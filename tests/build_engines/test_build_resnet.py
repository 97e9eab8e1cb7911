"""The classifiers' model folders, the network in them, and the pictures that the digits' network learns from."""

import filecmp
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from google.protobuf import text_format
from PIL import Image
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from build_engines.digit_images import MIN_CONTRAST, SIDES, held_out, render, training
from build_engines.digits import split
from build_engines.resnet import DIGITS, RESNET50, build, export, write_texts
from clients.resnet import Client
from serving.codecs import IMAGE, Limits

FOLDER = Path(__file__).resolve().parents[2] / "model_repository" / "resnet"
WEIGHTS = FOLDER / "1" / "model.onnx"


def config_of(path: Path) -> ModelConfig:
    return text_format.Parse(path.read_text(), ModelConfig())


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


@pytest.fixture(scope="session")
def resnet50(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository") / "resnet50"
    build("resnet50", folder)
    return folder


# --- the folder of the digits ---


def test_the_committed_folder_is_what_the_recipe_writes(tmp_path: Path) -> None:
    write_texts(DIGITS, tmp_path / "resnet")
    names = ["config.pbtxt", "configs/cpu.pbtxt", "labels.txt"]
    assert filecmp.cmpfiles(FOLDER, tmp_path / "resnet", names, shallow=False)[0] == names
    committed, made = Image.open(FOLDER / "example.png"), Image.open(tmp_path / "resnet" / "example.png")
    np.testing.assert_array_equal(np.asarray(committed), np.asarray(made))


@pytest.mark.parametrize("name", ["config.pbtxt", "configs/cpu.pbtxt"])
def test_triton_parses_the_configuration_and_it_describes_the_onnx_file(name: str) -> None:
    config, network = config_of(FOLDER / name), session(WEIGHTS)
    for declared, actual in ((config.input, network.get_inputs()), (config.output, network.get_outputs())):
        assert [(t.name, list(t.dims)) for t in declared] == [(t.name, t.shape[1:]) for t in actual]
        assert [t.type for t in actual] == ["tensor(float)"]
    assert (config.platform, config.max_batch_size) == ("onnxruntime_onnx", 32)
    assert config.HasField("dynamic_batching")
    assert config.parameters["client"].string_value == "resnet"


def test_the_two_configurations_differ_in_the_instances_only() -> None:
    gpu, cpu = config_of(FOLDER / "config.pbtxt"), config_of(FOLDER / "configs" / "cpu.pbtxt")
    assert [group.kind for group in gpu.instance_group] == [ModelInstanceGroup.KIND_GPU]
    assert [group.kind for group in cpu.instance_group] == [ModelInstanceGroup.KIND_CPU]
    for config in (gpu, cpu):
        del config.instance_group[:]
    assert gpu == cpu


def test_the_weights_are_one_file_small_enough_to_be_committed() -> None:
    assert WEIGHTS.stat().st_size <= 3_000_000
    assert [path.name for path in WEIGHTS.parent.iterdir()] == ["model.onnx"]


def test_triton_24_10s_onnx_runtime_can_read_the_file() -> None:
    """ONNX Runtime 1.19: opset 21 and IR version 10 at most."""
    model = onnx.load(WEIGHTS)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version <= 10
    assert [(o.domain, o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")] == [("", 20)]
    assert all(node.domain in ("", "ai.onnx") for node in model.graph.node)


@pytest.mark.parametrize("batch", [1, 2, 32])
def test_any_batch_is_taken(batch: int) -> None:
    images = np.random.default_rng(0).normal(size=(batch, 3, 64, 64)).astype(np.float32)
    network = session(WEIGHTS)
    together = network.run(["logits"], {"input": images})[0]
    alone = np.concatenate([network.run(["logits"], {"input": image[None]})[0] for image in images])
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_the_file_carries_no_path_of_the_machine_that_made_it() -> None:
    data = WEIGHTS.read_bytes()
    assert str(FOLDER.parents[1]).encode() not in data
    assert b"site-packages" not in data


def test_an_exported_network_equals_torchs_with_its_statistics_in_use(tmp_path: Path) -> None:
    network = DIGITS.network()
    network.train()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(16, 3, 64, 64, generator=generator)
    with torch.no_grad():
        network(images)  # moves the running means of the batch norms away from 0 and 1
        expected = network.eval()(images).logits.numpy()
    export(network, 64, tmp_path / "1" / "model.onnx")
    actual = session(tmp_path / "1" / "model.onnx").run(["logits"], {"input": images.numpy()})[0]
    np.testing.assert_allclose(actual, expected, atol=1e-4)
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["model.onnx"]


# --- the full-size stand-in ---


def test_resnet50_has_the_size_of_the_original(resnet50: Path) -> None:
    assert sum(p.numel() for p in RESNET50.network().parameters()) == 25_557_032
    assert 100e6 < (resnet50 / "1" / "model.onnx").stat().st_size < 105e6
    assert len((resnet50 / "labels.txt").read_text().splitlines()) == 1000


def test_resnet50_answers_through_its_client_and_equals_torch(resnet50: Path) -> None:
    client = RESNET50.client(resnet50)
    image = IMAGE.from_bytes((resnet50 / "example.png").read_bytes(), Limits())
    inputs = client.preprocess([image, image.rotate(90)])
    assert inputs["input"].shape == (2, 3, 224, 224)
    logits = session(resnet50 / "1" / "model.onnx").run(["logits"], inputs)[0]
    with torch.inference_mode():
        expected = RESNET50.network()(torch.from_numpy(inputs["input"])).logits.numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-3)
    predictions = client.postprocess({"logits": logits}, inputs, [image, image], {"top_k": 5})
    assert [len(p["classes"]) for p in predictions] == [5, 5]
    assert predictions[0]["classes"][0]["label"].startswith("class_")


def test_resnet50s_configuration_is_parsed_and_its_settings_are_the_clients(resnet50: Path) -> None:
    known = {p.name for p in (*Client.settings, *Client.parameters)} | {"client"}
    for folder in (resnet50, FOLDER):
        for name in ("config.pbtxt", "configs/cpu.pbtxt"):
            assert set(config_of(folder / name).parameters) <= known


# --- the pictures ---


def test_the_same_seed_gives_the_same_pictures_and_the_first_are_those_of_all() -> None:
    few, more = held_out(3), held_out(6)
    assert [label for _, label in few] == [label for _, label in more[:3]]
    for (one, _), (other, _) in zip(few, more, strict=False):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def test_the_held_out_pictures_are_the_whole_held_out_fifth() -> None:
    labels = [label for _, label in held_out()]
    assert labels == split()[1][1].tolist()
    assert len(labels) == 1797 // 5


def test_training_and_held_out_scans_do_not_overlap() -> None:
    """By the scan's place in scikit-learn's file; a few scans of different writers are equal to the pixel."""
    (learned, _), (kept, _) = split()
    assert len(learned) + len(kept) == 1797
    seen = {scan.tobytes() for scan in learned}
    assert sum(scan.tobytes() in seen for scan in kept) <= 1


def test_each_round_of_training_renders_every_digit_anew() -> None:
    first, second = next(training(0)), next(training(1))
    assert first[1] == second[1]
    assert first[0].size != second[0].size


def test_pictures_are_rgb_of_any_size_dark_on_light_and_light_on_dark() -> None:
    images = [image for image, _ in held_out(120)]
    sides = np.array([image.size for image in images])
    assert {image.mode for image in images} == {"RGB"}
    assert SIDES[0] <= sides.min() < 40
    assert 450 < sides.max() <= SIDES[1]
    assert np.mean(sides[:, 0] != sides[:, 1]) > 0.5


def test_ink_and_paper_differ_enough_to_be_seen_either_way_round() -> None:
    """A scan of nothing but ink in its middle: the picture's darkest and lightest parts are far apart."""
    scan = np.zeros((8, 8), np.uint8)
    scan[1:7, 1:7] = 255
    darker = 0
    for seed in range(40):
        grey = np.asarray(render(scan, np.random.default_rng(seed)).convert("L"), np.float64)
        low, high = np.percentile(grey, [2, 98])
        assert high - low > MIN_CONTRAST / 2
        darker += np.median(np.concatenate([grey[0], grey[-1]])) > (low + high) / 2
    assert 10 <= darker <= 30
