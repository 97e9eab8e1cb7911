"""Copies files of the bundled models from model_repository. `resnet` and `yolov5`, small networks
that read handwritten digits, are built by copying alone."""

import shutil
from pathlib import Path

from build_engines.build_record import digest
from build_engines.errors import BuildError, UsageError
from build_engines.families.family import Family
from build_engines.labels import read_lines, write_labels
from build_engines.model_spec import ModelSpec
from build_engines.request import REPOSITORY, Request
from build_engines.weights import Weights
from clients._labels import DEFAULT_LABELS

SHA256 = {
    "resnet": "ac2ffbdb8ce1bd7fe5e89c8c5417333b6f53dd49a967bd7e70593335eed2e576",
    "yolov5": "757b33d66e30992e109b10c268f3617dbcf713ded89d8ce7b9913e8ba04f5f33",
}
SPECS = {
    "resnet": ModelSpec(
        max_batch_size=32,
        settings={"resize": "stretch", "interpolation": "bilinear"},
        labels=DEFAULT_LABELS,
    ),
    "yolov5": ModelSpec(max_batch_size=8, settings={"layout": "yolov5"}, lengths=(32, 640, 1280)),
}


def write_model(
    _: Family, __: Weights, request: Request, folder: Path, repository: Path = REPOSITORY
) -> ModelSpec:
    """Copy the bundled model's files to `folder`, and return its ModelSpec. Raise UsageError for
    flags that would change the network, and BuildError if the network is not the committed one."""
    spec, source = SPECS[request.model], repository / request.model
    network = source / "1" / "model.onnx"
    if request.size or {"mean", "std", "scale"} & request.settings.keys():
        raise UsageError(
            f"the network of '{request.model}' has a fixed size, scale, mean and std: leave out "
            "--size, and --set of these"
        )
    if not network.is_file() or digest(network) != SHA256[request.model]:
        raise BuildError(
            f"{network} is not the committed network: get it back (git checkout {network})"
        )
    shutil.copyfile(network, folder / "1" / "model.onnx")
    write_labels(folder / DEFAULT_LABELS, read_lines(source / DEFAULT_LABELS), request.labels)
    copy_example(request.model, folder)
    return spec


def copy_example(model: str, folder: Path, *others: str) -> None:
    """Copy the example of a bundled model, and the model's files that match the patterns `others`,
    into the folder."""
    for pattern in ("example.*", *others):
        for file in (REPOSITORY / model).glob(pattern):
            shutil.copyfile(file, folder / file.name)
