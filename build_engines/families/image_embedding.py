"""Networks that turn an image into a vector: CLIP's and SigLIP's vision towers, DINOv2, ViT …"""

from typing import Any

from build_engines.errors import BuildError
from build_engines.families.family import Family, Head
from build_engines.families.image_folder import EXPORTS
from build_engines.measures import IMAGES, VECTORS


def _vector(network: Any, images: Any) -> tuple[Any, ...]:
    """Return the embedding that CLIP and SigLIP compare with texts, else the pooled output."""
    has_features = hasattr(network, "get_image_features")
    output = network.get_image_features(images) if has_features else network(images)
    for name in ("image_embeds", "pooler_output"):
        vector = getattr(output, name, None)
        if vector is not None:
            return (vector,)
    raise BuildError(
        f"{type(network).__name__} has no pooled output, so it has no single vector for an image"
    )


HEAD = Head(
    ("VisionModelWithProjection", "Model"), "AutoModel", ("embedding",), _vector, labelled=False
)
FAMILY = Family(
    client="image_embedding",
    exports=EXPORTS,
    head=HEAD,
    example="efficientnet",
    samples=IMAGES,
    measure=lambda _: VECTORS,
)
