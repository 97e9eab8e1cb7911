"""`resnet`: ResNet-18 at a quarter of its width, which reads handwritten digits: its committed weights, or training.

703,386 parameters: the digit may lie anywhere, so the whole image is resized.
"""

from pathlib import Path

from build_engines.demos.committed import Committed
from build_engines.families import resnet
from build_engines.families.resnet import Architecture
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import REPOSITORY, Request
from clients.base import Model, TensorSpec
from clients.resnet import Client

TRAINED = Committed(
    path=REPOSITORY / "resnet/1/model.onnx", sha256="419e6022ebf70aa44aa9713e2ffb313d415a77ac854bd3b40ef3c194efa20888"
)
DIGITS = Architecture(
    side=64,
    labels=tuple("0123456789"),
    settings={"resize": "stretch", "interpolation": "bilinear", "mean": "0.5", "std": "0.25"},
    layers={"layer_type": "basic", "depths": (2, 2, 2, 2), "embedding_size": 16, "hidden_sizes": (16, 32, 64, 128)},
)


def export(request: Request, folder: Path) -> ModelSpec:
    """The model folder's files, from the committed weights or from training."""
    model = folder / "1" / "model.onnx"
    if request.source == "train":
        _train(folder, model)
    else:
        TRAINED.copy(model)
    return resnet.finish(request, folder, DIGITS)


def _train(folder: Path, model: Path) -> None:
    from build_engines.demos import resnet_training
    from build_engines.families import resnet_network

    network = resnet_network.random_network(DIGITS.layers, len(DIGITS.labels))
    resnet_training.train(network, _client(folder))
    resnet_network.write_onnx(network, DIGITS.side, model)


def _client(folder: Path) -> Client:
    """The client that will serve the model."""
    model = Model(
        name=folder.name,
        path=folder,
        inputs=(TensorSpec("input", "FP32", (3, DIGITS.side, DIGITS.side)),),
        outputs=(TensorSpec("logits", "FP32", (len(DIGITS.labels),)),),
        max_batch_size=resnet.MAX_BATCH_SIZE,
        parameters=DIGITS.settings,
    )
    return Client(model)
