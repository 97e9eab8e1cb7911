"""Decodes images as a part of an ensemble, on Triton's Python backend. It takes encoded images,
UINT8 [n, bytes], and returns pixels, UINT8 [n, 3, 224, 224].

It does what dali.py does, on machines without DALI: it decodes an image, rotates it according to
EXIF, and resizes it. Transparent parts become white, as in this project's clients; DALI ignores
transparency. Bytes after the end of the image are ignored, so a batch can be padded with zeros.
Triton's Python environment needs Pillow.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray
from PIL import Image, ImageOps

SIDE = 224
LARGEST = 89_000_000  # maximum number of pixels of an image


class TritonPythonModel:
    """Decodes the images of requests. Triton prescribes the name and the argument of `execute`."""

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Return one response for each request. An image that cannot be decoded fails only its own
        request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        images = pb_utils.get_input_tensor_by_name(request, "DALI_INPUT_0").as_numpy()
        try:
            pixels = np.stack([_pixels(image.tobytes()) for image in images])
        # Pillow raises these for bytes that are not an image
        except (OSError, ValueError, SyntaxError) as err:
            error = pb_utils.TritonError(
                f"the image cannot be decoded: {err}", pb_utils.TritonError.INVALID_ARG
            )
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("DALI_OUTPUT_0", pixels)])


def _pixels(encoded: bytes) -> NDArray[np.uint8]:
    file = Image.open(io.BytesIO(encoded))
    if file.width * file.height > LARGEST:
        raise ValueError(f"it has {file.width}×{file.height} pixels, more than {LARGEST}")
    image = ImageOps.exif_transpose(file)
    # Pillow does not support transparency in the modes I and F.
    if image.has_transparency_data and image.mode[0] not in "IF":
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    small = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))
