"""Defines a family: all that the build knows about one family of models, in one object."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from build_engines.errors import UsageError
from build_engines.measures import Measure, Samples
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.weights import OWN, Weights
from clients.base import ModelClient

Arrays = Sequence[NDArray[Any]]
CLOSE = 1e-3  # by which a file's answers may differ from the network's


def equal(outputs: Arrays, wanted: Arrays, *_: Any) -> bool:
    """Return whether all arrays are equal up to rounding."""
    return all(
        np.allclose(a, b, rtol=CLOSE, atol=CLOSE) for a, b in zip(outputs, wanted, strict=True)
    )


def logits(network: Any, images: Any) -> tuple[Any, ...]:
    """Return the logits of a network of transformers."""
    return (network(images).logits,)


@dataclass(frozen=True)
class Head:
    """How networks of transformers become a file that the family's client reads.

    `architectures` are the ends of their names in config.json, `loader` is the class of
    transformers that loads them. `read` turns the network and its images into the tensors called
    `outputs`, and `same` compares two lists of these. With `labelled`, config.json names the
    classes. With `finds_boxes`, the image processor says which boxes are kept.
    """

    architectures: tuple[str, ...]
    loader: str
    outputs: tuple[str, ...] = ("logits",)
    read: Callable[[Any, Any], tuple[Any, ...]] = logits
    same: Callable[..., bool] = equal
    labelled: bool = True
    finds_boxes: bool = False

    def fits(self, weights: Weights) -> bool:
        """Return whether the weights are a folder of such a network."""
        return weights.is_image and weights.architecture.endswith(self.architectures)


def no_tokenizer(request: Request, _folder: Path) -> dict[str, str]:
    """Write no further files. Raise UsageError for a flag that only texts take."""
    if request.tokenizer:
        raise UsageError("--tokenizer is for --client text")
    return {}


@dataclass(frozen=True)
class Family:
    """A family of models. Without a `client` they take tensors.

    `exports` has, for each kind of weights, the function that writes 1/model.onnx (or 1/model.pt)
    with its labels and example; `own_weights` has those of the recipes whose weights the project or
    a package brings. Weights for which no client is named are taken by the first of FAMILIES whose
    `head` fits, or that `recognises` them.

    `write_files` writes the other files that a user's own file needs, and returns settings.
    `example` is the model of the repository that has an example for such a file. `classifies`: its
    scores are Triton's classes. `from_logits`: with these settings, its client computes scores from
    logits. `boxes_in_pixels`: its client takes boxes in pixels of the input.

    `samples` and `measure` are for comparing an engine with fp32 (None: on tensors). `static_int8`:
    INT8 means calibrated convolutions; `fp32_head`: the last of them stay in fp32.
    `any_cpu_engine`: the answers stay within the limits in BF16, so on CPUs with AMX `serve` runs
    the model on OpenVINO. `cpu_only`: no GPU computes its operators.
    """

    client: str
    exports: Mapping[str, "Export"]
    own_weights: Mapping[str, "Export"] = field(default_factory=dict)
    recognises: Callable[[Weights], bool] = lambda _: False
    head: Head | None = None
    write_files: Callable[[Request, Path], dict[str, str]] = no_tokenizer
    example: str = ""
    classifies: bool = False
    from_logits: Callable[[Mapping[str, str]], bool] = lambda _: False
    boxes_in_pixels: bool = False
    samples: Samples | None = None
    measure: Callable[[ModelClient], Measure] | None = None
    static_int8: bool = False
    fp32_head: bool = False
    any_cpu_engine: bool = False
    cpu_only: bool = False

    def takes(self, weights: Weights) -> bool:
        """Return whether this family builds these weights if no client is named."""
        has_head = self.head is not None and self.head.fits(weights)
        return has_head or self.recognises(weights)

    def export(self, weights: Weights, request: Request, folder: Path) -> ModelSpec:
        """Fill the folder with the fp32 model and its other files. Raise UsageError if the family
        does not take this kind of weights."""
        write = self.exports.get(weights.kind)
        if weights.kind == OWN:
            write = self.own_weights.get(request.model)
        if write is None:
            whose = f"the client {self.client}" if self.client else "a model without a client"
            what = f"--weights '{request.weights}' is {weights.kind}"
            if not request.weights:
                what = f"{request.model} has no weights of its own for it: add --weights"
            raise UsageError(f"{what}; {whose} is built from {', '.join(self.exports)}")
        (folder / "1").mkdir(parents=True, exist_ok=True)
        return write(self, weights, request, folder)


Export = Callable[[Family, Weights, Request, Path], ModelSpec]
