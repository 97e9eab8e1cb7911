"""`resnet`: ResNet-18 at a quarter of its width, which reads handwritten digits: its committed weights, or training.

703,386 parameters: the digit may lie anywhere, so the whole image is resized.
"""

from pathlib import Path

from build_engines.demos.committed import Committed
from build_engines.errors import UsageError
from build_engines.families import resnet
from build_engines.families.resnet import Architecture
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import REPOSITORY, Request

TRAINED = Committed(
    path=REPOSITORY / "resnet/1/model.onnx", sha256="ac2ffbdb8ce1bd7fe5e89c8c5417333b6f53dd49a967bd7e70593335eed2e576"
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
        _train(request, model)
    else:
        _copy_committed(request, model)
    return resnet.finish(request, folder, DIGITS)


def _copy_committed(request: Request, model: Path) -> None:
    if given := [name for name in resnet.IN_NETWORK if name in request.settings]:
        raise UsageError(f"--set {given[0]}: the network normalizes; build with --weights train")
    TRAINED.copy(model)


def _train(request: Request, model: Path) -> None:
    from build_engines.demos import resnet_training
    from build_engines.families import resnet_network

    network = resnet_network.random_network(DIGITS.layers, len(DIGITS.labels))
    client = resnet.client_of(request, DIGITS, len(DIGITS.labels))
    resnet_training.train(network, client)
    resnet_network.write_onnx(network, client, model)
