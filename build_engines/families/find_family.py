"""Lists the families of models that can be built, and chooses the family for a build.

| Weights | The family without --client | Written by |
|---|---|---|
| a folder that transformers saved, for images | the one whose `head` fits | image_checkpoint.py |
| a folder that transformers saved, for texts | text.py | bert.py, text_network.py |
| a model of scikit-learn, XGBoost or LightGBM | table.py | tables/to_onnx.py |
| an ONNX file with operators of ai.onnx.ml | table.py | table.py |
| any other ONNX file, a TorchScript file | tensors.py | own_onnx.py, own_torchscript.py |

A detector with YOLO's output cannot be recognized from its file. The user must add --client
object-detection, and clients/_box_decoding.py recognizes the layout of the output.
"""

from collections.abc import Sequence

from build_engines.errors import BuildError, UsageError
from build_engines.families import (
    detr,
    image_classification,
    image_embedding,
    object_detection,
    semantic_segmentation,
    table,
    tensors,
    text,
)
from build_engines.families.family import Family, Head
from build_engines.families.text_checkpoint import TO_TENSORS
from build_engines.request import Request
from build_engines.weights import CHECKPOINT, TENSORS, Weights
from clients import CLIENT_ALIASES
from serving.clients import client_names

# if no client is named, the first of these families that takes the weights builds them
FAMILIES = (
    table.FAMILY,
    image_classification.FAMILY,
    semantic_segmentation.FAMILY,
    detr.FAMILY,
    image_embedding.FAMILY,
    object_detection.FAMILY,
    text.FAMILY,
    tensors.FAMILY,
)


def family_of(client: str) -> Family | None:
    """Return the family of one of this project's clients ("": no client), or None for others."""
    name = CLIENT_ALIASES.get(client, client)
    return next((family for family in FAMILIES if family.client == name), None)


def by_client(client: str) -> Family:
    """Return the family of one of this project's clients ("": no client). Raise UsageError for any
    other client."""
    if family := family_of(client):
        return family
    raise UsageError(
        f"--client {client}: the clients are {', '.join(client_names())}; without --client, the "
        "model takes tensors, and you can add a client.py of your own to its folder"
    )


def find_family(request: Request, weights: Weights) -> Family:
    """Return the family of the client that --client or the recipe names, or else the first family
    that takes the weights. Raise BuildError or UsageError if no family takes the weights, or if
    they are a network or a torch.save file that the named client's family does not build."""
    named = by_client(request.named_client) if request.named_client else None
    if weights.kind == TENSORS and not (named and TENSORS in named.writers):
        raise UsageError(
            f"{weights.path} is a file of torch.save, and only those of YOLOv5 can be built "
            "(--client object-detection): where its code is, call torch.onnx.export(network, "
            "example, 'model.onnx'), and build the ONNX file"
        )
    if named and named.head and weights.kind == CHECKPOINT and not named.head.fits(weights):
        raise _other_network(weights, [named.head])
    if named:
        return named
    for family in FAMILIES:
        if family.takes(weights):
            return family
    raise _unknown(weights)


def _unknown(weights: Weights) -> BuildError:
    """Return the error for a folder that no family takes."""
    if weights.is_image:
        return _other_network(weights, [family.head for family in FAMILIES if family.head])
    kind = weights.config.get("model_type") or "no model_type in config.json"
    return UsageError(
        f"{weights.path} ({kind}) has neither a tokenizer's files nor preprocessor_config.json, so "
        "nothing says what it takes: save its tokenizer or image processor there too "
        "(save_pretrained), or export it to ONNX and build the ONNX file"
    )


def _other_network(weights: Weights, heads: Sequence[Head]) -> BuildError:
    """Return the error for a folder that has no image processor, or whose network fits none of the
    `heads`."""
    if not weights.is_image:
        return BuildError(
            f"{weights.path} has no preprocessor_config.json, which says how images are prepared"
        )
    name = weights.architecture or str(weights.config.get("model_type", "network of no name"))
    fitting = next((family for family in FAMILIES if family.takes(weights)), None)
    if not weights.architecture:
        remedy = 'add "architectures" to it: ["ViTForImageClassification"]'
    elif fitting:
        remedy = f"without --client it becomes a model of the client {fitting.client}"
    else:
        remedy = TO_TENSORS
    ends = []
    for head in heads:
        ends += [f"…{end}" for end in head.architectures]
    return BuildError(
        f"{weights.path} holds a {name} according to its config.json, and the networks that can be "
        f"built are named {', '.join(ends)}; {remedy}"
    )
