"""Defines the class Family, which describes how one family of models is built."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from build_engines import onnx_reader
from build_engines.errors import BuildError, UsageError
from build_engines.families.onnx_tensors import with_tensors
from build_engines.measures import Measure, Samples
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.weights import ONNX_FILE, OWN, Weights
from clients.base import ModelClient

Arrays = Sequence[NDArray[Any]]
CLOSE = 1e-3  # tolerance when an exported file's outputs are compared with the network's


def equal(outputs: Arrays, wanted: Arrays, *_: Any) -> bool:
    """Return whether the `outputs` equal the `wanted` arrays up to rounding. Ignore any further
    arguments, such as the example, which other functions for `Head.same` may read."""
    pairs = zip(outputs, wanted, strict=True)
    return all(np.allclose(ours, theirs, rtol=CLOSE, atol=CLOSE) for ours, theirs in pairs)


def read_logits(network: Any, images: Any) -> tuple[Any, ...]:
    """Run a network from the transformers library on the images, and return its logits."""
    return (network(images).logits,)


def no_settings(_processor: Any) -> dict[str, str]:
    """Return no settings. This is right if the client, by its defaults, does the same after the
    network as the image processor."""
    return {}


@dataclass(frozen=True)
class Head:
    """Describes how a network from the transformers library becomes an ONNX file that the family's
    client can read."""

    # suffixes of the networks' class names in config.json
    architectures: tuple[str, ...]
    # the class in the transformers library that loads the networks
    loader: str
    # names of the tensors that `read` returns
    outputs: tuple[str, ...] = ("logits",)
    # runs the network on images, and returns its outputs
    read: Callable[[Any, Any], tuple[Any, ...]] = read_logits
    # returns whether the outputs of the exported file equal the network's, for an example
    same: Callable[..., bool] = equal
    # whether the network has classes, whose names are in config.json
    labelled: bool = True
    # returns the client's settings for what the image processor does after the network
    settings: Callable[[Any], dict[str, str]] = no_settings

    def fits(self, weights: Weights) -> bool:
        """Return whether the weights are an image network whose class name ends in one of the
        `architectures`."""
        return weights.is_image and weights.architecture.endswith(self.architectures)


def no_tokenizer(request: Request, _folder: Path) -> dict[str, str]:
    """Write no files, because the client needs none, and return no settings. Raise UsageError for
    --tokenizer, which is only for texts."""
    if request.tokenizer:
        raise UsageError("--tokenizer is for --client text")
    return {}


@dataclass(frozen=True)
class Family:
    """Describes a family of models. --client or the recipe chooses the family. Without them, the
    build uses the first of FAMILIES (find_family.py) whose `head` fits the weights or that
    `recognizes` them."""

    # the name of the client's module in clients/; "": no client, so callers send tensors
    client: str
    # functions that write 1/model.onnx (or 1/model.pt) and the files that belong to the model,
    # keyed by the kind of weights
    writers: Mapping[str, "Writer"]
    # functions that write the same files from weights in this project or a Python package, keyed by
    # recipe
    own_weights: Mapping[str, "Writer"] = field(default_factory=dict)
    # if no client is named: returns whether the family takes weights that `head` does not fit
    recognizes: Callable[[Weights], bool] = lambda _: False
    # which image networks from the transformers library the family builds, and how it exports them
    head: Head | None = None
    # for a user's own ONNX or TorchScript file: writes the other files that the client needs, and
    # returns the client's settings
    write_files: Callable[[Request, Path], dict[str, str]] = no_tokenizer
    # the bundled model whose example a user's model gets, unless its input is grey; "": none
    example: str = ""
    # whether the first output is one score for each class
    classifies: bool = False
    # returns the names of the outputs that the client always reads as logits; the setting
    # `activation` does not apply to them
    logit_names: Callable[[ModelSpec], Sequence[str]] = lambda _: ()
    # whether the client expects boxes in pixels of the input
    boxes_in_pixels: bool = False
    # the samples on which INT8 is calibrated and an engine is compared with fp32; None: engines are
    # compared on random tensors, and INT8 cannot be calibrated
    samples: Samples | None = None
    # returns the measure that compares predictions made with default parameters; None: no samples
    measure: Callable[[ModelClient], Measure] | None = None
    # whether INT8 for a CPU quantizes convolutions (with calibration) rather than matrix products
    static_int8: bool = False
    # if `static_int8`: whether the last convolutions stay in fp32
    fp32_head: bool = False
    # whether predictions in BF16 are close enough to fp32; if so, `serve` uses OpenVINO by default
    # on CPUs that compute in BF16
    any_cpu_engine: bool = False
    # whether the models have operators that no GPU supports
    cpu_only: bool = False

    def takes(self, weights: Weights) -> bool:
        """Return whether the family takes the weights if no client is named."""
        has_head = self.head is not None and self.head.fits(weights)
        return has_head or self.recognizes(weights)

    def write_model(self, weights: Weights, request: Request, folder: Path) -> ModelSpec:
        """Write the fp32 model and its other files into the folder. Return the writer's ModelSpec,
        completed with the client and the settings of the request. If the writer lists no tensors,
        the tensors and the maximum batch size are added too (`with_tensors`). A setting of the
        request overrides the writer's. Raise UsageError if the family cannot build this kind of
        weights, BuildError for an ONNX file whose scores the client would read as logits, and any
        error of the writer or of `with_tensors`."""
        writer = self._writer(weights, request)
        (folder / "1").mkdir(parents=True, exist_ok=True)
        spec = writer(self, weights, request, folder)
        if not spec.inputs:
            spec = with_tensors(request, folder, spec)
        client = request.named_client or self.client  # may be an alias of the family's client
        spec = replace(spec, client=client, settings={**spec.settings, **request.settings})
        if weights.kind == ONNX_FILE:
            self._check_logits(weights.graph, spec)
        return spec

    def _writer(self, weights: Weights, request: Request) -> "Writer":
        """Return the writer for the weights. Raise UsageError if there is none."""
        if weights.kind == OWN:
            writer = self.own_weights.get(request.model)
        else:
            writer = self.writers.get(weights.kind)
        if writer:
            return writer
        target = f"the client {self.client}" if self.client else "a model without a client"
        if request.weights:
            mistake = f"--weights '{request.weights}' is {weights.kind}"
        else:
            mistake = f"{request.model} has no weights of its own for it: add --weights"
        raise UsageError(f"{mistake}; {target} is built from {', '.join(self.writers)}")

    def _check_logits(self, graph: onnx.ModelProto, spec: ModelSpec) -> None:
        """Raise BuildError if an output that the client reads as logits comes from a softmax or a
        sigmoid. The client would apply a second one, and its answers would be wrong."""
        for name in self.logit_names(spec):
            if onnx_reader.makes_scores(graph, name):
                raise BuildError(
                    f"the file's output '{name}' comes from a softmax or a sigmoid, but the client "
                    f"{spec.client} itself computes scores, from logits: export the network "
                    "without this last operator"
                )


Writer = Callable[[Family, Weights, Request, Path], ModelSpec]
