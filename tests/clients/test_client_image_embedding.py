"""Images as vectors, against those of transformers' own encoders."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from build_engines.build import export
from build_engines.comparison import compare
from build_engines.errors import BuildError
from build_engines.request import Request
from clients.base import Model, TensorSpec
from clients.image_embedding import Client
from serving.errors import InferenceFailed, InvalidRequest
from tests.clients.text_models import Served, save_tokenizer
from tests.clients.vision_models import ENCODERS, images, pipeline, predict, processor_of, runner, save_vision, serve

pytestmark = pytest.mark.full


def client_of(*shape: int) -> Client:
    inputs, outputs = (TensorSpec("input", "UINT8", (3, 8, 8)),), (TensorSpec("vector", "FP32", shape),)
    return Client(Model("own", Path("/nonexistent"), inputs, outputs, 8))


def of_the_network(checkpoint: Path, name: str, picture: Image.Image) -> Any:
    """Return the vector that transformers compares with a text, which is not the pooled output."""
    pixels = processor_of(checkpoint, name)(images=picture, return_tensors="pt")
    with torch.inference_mode():
        if name == "clip-projected":
            return transformers.CLIPVisionModelWithProjection.from_pretrained(checkpoint)(**pixels).image_embeds[0]
        return transformers.AutoModel.from_pretrained(checkpoint).get_image_features(**pixels).pooler_output[0]


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_gives_the_vectors_of_transformers(name: str, tmp_path: Path) -> None:
    checkpoint, client = serve(tmp_path, name)
    ours = [each["embedding"] for each in predict(client, images(), normalize=False)]
    if name in ("clip", "siglip", "clip-projected"):
        wanted = [of_the_network(checkpoint, name, picture).numpy() for picture in images()]
    else:
        whole = pipeline("image-feature-extraction", checkpoint, name)
        wanted = [np.array(whole(picture, pool=True)[0]) for picture in images()]
    np.testing.assert_allclose(ours, wanted, atol=1e-4)
    assert np.ptp(ours, axis=0).max() > 0.01  # the network tells the images apart
    scaled = [each["embedding"] for each in predict(client, images())]
    np.testing.assert_allclose(scaled, np.array(ours) / np.linalg.norm(ours, axis=1, keepdims=True), atol=1e-6)
    (score,) = compare(client.model, client, runner(client), runner(client), count=2)
    assert score.value == pytest.approx(1)


@pytest.mark.parametrize("alone", [False, True])
def test_clip_s_two_towers_are_two_models_that_compare_texts_with_images(alone: bool, tmp_path: Path) -> None:
    """A text tower may be a folder of its own."""
    checkpoint, client = serve(tmp_path, "clip")
    network = transformers.CLIPModel.from_pretrained(checkpoint)
    folder = checkpoint
    if alone:
        folder = tmp_path / "texts"
        tower = transformers.CLIPTextModelWithProjection.from_pretrained(checkpoint, projection_dim=24)
        tower.save_pretrained(folder)
    save_tokenizer(folder, "bytes")
    texts = ["the cat sat", "a dog", "quickly the fox ran under the moon"]
    made = export(Request("words", client="bert"), folder, tmp_path / "made")
    vectors = np.array([each["embedding"] for each in Served(tmp_path / "made", **made.settings).predict(texts)])
    images_ = np.array([each["embedding"] for each in predict(client, images(), normalize=True)])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer(texts, return_tensors="pt", padding=True)
    pixels = processor_of(checkpoint, "clip")(images=images(), return_tensors="pt")
    with torch.inference_mode():
        wanted = network(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask, **pixels).logits_per_image
    scale = network.logit_scale.exp().item()
    np.testing.assert_allclose(scale * images_ @ vectors.T, wanted.numpy(), atol=1e-3)


def test_another_network_s_text_tower_is_refused(tmp_path: Path) -> None:
    """SigLIP's reads texts that are padded to its whole length."""
    folder = save_vision(tmp_path, "siglip")
    save_tokenizer(folder, "bytes")
    with pytest.raises(BuildError, match="SiglipModel"):
        export(Request("words", client="bert"), folder, tmp_path / "made")


def test_a_network_with_a_batch_of_one_of_its_own_gives_a_vector() -> None:
    inputs, outputs = (TensorSpec("input", "UINT8", (1, 3, 8, 8)),), (TensorSpec("vector", "FP32", (1, 2)),)
    client = Client(Model("own", Path("/nonexistent"), inputs, outputs, 0))
    vectors = np.array([[[3, 4]]], np.float32)  # the caller adds a dimension for the image
    assert client.postprocess({"vector": vectors}, {}, [None], {"normalize": False}) == [{"embedding": [3, 4]}]


def test_what_is_no_vector_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="'vector'"):
        client_of(7, 7, 32)
    for wrong in (np.full((1, 4), np.nan), np.zeros((1, 2, 4))):
        with pytest.raises(InferenceFailed, match="'vector'"):
            client_of(4).postprocess({"vector": wrong}, {}, images()[:1], {"normalize": True})
    assert client_of(4).postprocess({"vector": np.zeros((1, 4))}, {}, [None], {"normalize": True}) == [
        {"embedding": [0, 0, 0, 0]}
    ]
