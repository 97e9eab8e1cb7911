"""Builds networks that turn an image into a vector: CLIP's and SigLIP's vision towers, DINOv2, ViT
and others."""

from typing import Any

from build_engines.errors import BuildError
from build_engines.families.family import Family, Head
from build_engines.families.image_checkpoint import WRITERS
from build_engines.measures import IMAGES, VECTORS


def _vector(network: Any, images: Any) -> tuple[Any, ...]:
    """Run the network. Return the embedding that CLIP and SigLIP compare with texts, or else the
    pooled output. Raise BuildError if the network has neither."""
    has_features = hasattr(network, "get_image_features")
    # since transformers 5, get_image_features returns the embedding as a pooler_output
    output = network.get_image_features(images) if has_features else network(images)
    embedding = getattr(output, "image_embeds", None)
    if embedding is not None:
        return (embedding,)
    pooled = getattr(output, "pooler_output", None)
    if pooled is None:
        raise BuildError(
            f"{type(network).__name__} has no pooled output, so it has no single vector for an "
            "image"
        )
    if pooled.shape[2:].numel() == 1:  # ResNet, RegNet and BiT pool to [batch, channels, 1, 1]
        pooled = pooled.flatten(1)
    return (pooled,)


HEAD = Head(
    architectures=("VisionModelWithProjection", "Model"),
    loader="AutoModel",
    outputs=("embedding",),
    read=_vector,
    labelled=False,
)
FAMILY = Family(
    client="image_embedding",
    writers=WRITERS,
    head=HEAD,
    example="efficientnet",
    samples=IMAGES,
    measure=lambda _: VECTORS,
)
