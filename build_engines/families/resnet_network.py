"""transformers' ResNets: with random weights or from a torchvision file; and their export."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import ResNetConfig, ResNetForImageClassification

from build_engines.errors import BuildError
from build_engines.families.image_heads import OUTPUT
from build_engines.families.image_network import INPUT, Pixels
from build_engines.families.torch_checkpoint import load_state, read_state
from build_engines.families.torch_export import export_onnx
from clients.resnet import Client

_FIRST = {"conv1": "convolution", "bn1": "normalization"}
_SHORTCUT = {"0": "convolution", "1": "normalization"}
_INNER = {"conv": "convolution", "bn": "normalization"}


def random_network(architecture: Mapping[str, Any], classes: int) -> ResNetForImageClassification:
    """The network with random weights; the same every time."""
    torch.manual_seed(0)
    return ResNetForImageClassification(ResNetConfig(num_labels=classes, **architecture)).eval()


def from_torchvision(path: Path) -> ResNetForImageClassification:
    """The network with the weights of a torchvision ResNet file, read by torch's tensors-only loader."""
    state = read_state(path)
    if "layer1.0.conv1.weight" not in state:
        raise BuildError(f"{path} is not a torchvision ResNet: it has no tensor 'layer1.0.conv1.weight'")
    network = ResNetForImageClassification(_config(state)).eval()
    renamed = {transformers_name(name): tensor for name, tensor in state.items()}
    load_state(network, renamed, path, "ResNet's structure")
    return network


def _config(state: Mapping[str, torch.Tensor]) -> ResNetConfig:
    """The architecture, derived from the tensors' names and shapes."""
    bottleneck = "layer1.0.conv3.weight" in state
    last = "conv3" if bottleneck else "conv2"
    depths = [len({name.split(".")[1] for name in state if name.startswith(f"layer{i}.")}) for i in range(1, 5)]
    return ResNetConfig(
        layer_type="bottleneck" if bottleneck else "basic",
        depths=depths,
        embedding_size=state["conv1.weight"].shape[0],
        hidden_sizes=[state[f"layer{i}.0.{last}.weight"].shape[0] for i in range(1, 5)],
        num_labels=state["fc.bias"].shape[0],
    )


def transformers_name(name: str) -> str:
    """torchvision's name of a tensor -> transformers' name: layer1.0.conv2.weight -> resnet.encoder.stages.0.…"""
    if found := re.fullmatch(r"(conv1|bn1)\.(.*)", name):
        return f"resnet.embedder.embedder.{_FIRST[found[1]]}.{found[2]}"
    if found := re.fullmatch(r"layer(\d)\.(\d+)\.downsample\.([01])\.(.*)", name):
        place = f"resnet.encoder.stages.{int(found[1]) - 1}.layers.{found[2]}"
        return f"{place}.shortcut.{_SHORTCUT[found[3]]}.{found[4]}"
    if found := re.fullmatch(r"layer(\d)\.(\d+)\.(conv|bn)(\d)\.(.*)", name):
        place = f"resnet.encoder.stages.{int(found[1]) - 1}.layers.{found[2]}"
        return f"{place}.layer.{int(found[4]) - 1}.{_INNER[found[3]]}.{found[5]}"
    return name.replace("fc.", "classifier.1.")


def write_onnx(network: ResNetForImageClassification, client: Client, path: Path, batching: bool = True) -> None:
    """input UINT8 [N,3,side,side] -> logits [N,classes]; `client` is that of the network alone, and says how the pixels
    are normalized."""
    shape = client.input.shape
    export_onnx(Pixels(network, client), shape, path, (INPUT, OUTPUT), batching, torch.uint8)
