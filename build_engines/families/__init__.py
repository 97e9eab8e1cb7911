"""The families of models that can be built. Each module with a FAMILY is one; the others are what
they export with."""

from build_engines.errors import BuildError, UsageError
from build_engines.families import (
    detr,
    image_classification,
    image_embedding,
    image_folder,
    object_detection,
    semantic_segmentation,
    table,
    tensors,
    text,
)
from build_engines.families.family import Family
from build_engines.request import Request
from build_engines.weights import CHECKPOINT, TENSORS, Weights
from clients import FACES
from serving.clients import families as client_names

# the first that recognises weights takes them
FAMILIES: tuple[Family, ...] = tuple(
    module.FAMILY
    for module in (
        table,
        image_classification,
        semantic_segmentation,
        detr,
        image_embedding,
        object_detection,
        text,
        tensors,
    )
)


def family_of(client: str) -> Family | None:
    """Return the family of a client, "" for no client; None for a client of the user's own."""
    name = FACES.get(client, client)
    return next((family for family in FAMILIES if family.client == name), None)


def by_client(client: str) -> Family:
    """Return the family of a client of this project, "" for none. Raise UsageError."""
    if family := family_of(client):
        return family
    raise UsageError(
        f"--client {client}: the clients are {', '.join(client_names())}; without one the model "
        "takes tensors"
    )


def find_family(request: Request, weights: Weights) -> Family:
    """Return the family of the flag or the recipe, else the first that recognises the weights.
    Raise BuildError if none does."""
    named = by_client(request.named_client) if request.named_client else None
    if weights.kind == TENSORS and not (named and TENSORS in named.exports):
        raise UsageError(
            f"{weights.path} is a file of torch.save, of which only YOLOv5's is built (--client "
            "object-detection): where its code is, export the network, torch.onnx.export(network, "
            "example, 'model.onnx'), and build that"
        )
    if named:
        return named
    for family in FAMILIES:
        if family.takes(weights):
            return family
    raise _unknown(weights)


def _unknown(weights: Weights) -> BuildError:
    if weights.kind != CHECKPOINT:
        return UsageError(f"{weights.path} is {weights.kind}: name its --client")
    if weights.is_image:
        heads = [family.head for family in FAMILIES if family.head]
        ends = [end for head in heads for end in head.architectures]
        return image_folder.refused(weights, None, ", ".join(f"…{end}" for end in ends))
    kind = weights.config.get("model_type") or "no model_type in config.json"
    return UsageError(
        f"{weights.path} ({kind}) has neither a tokenizer's files nor preprocessor_config.json, so "
        "it is not known what it takes: save its tokenizer or image processor there too "
        "(save_pretrained), or export it to ONNX, of which any file is taken"
    )
