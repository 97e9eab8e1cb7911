"""A part of an ensemble, on Triton's Python backend: encoded image UINT8 [n, bytes] -> pixels, FP32
or UINT8 [n, …].

Does what dali.py does, on machines without DALI: decode, turn by EXIF, resize, (pixel - mean) /
std. Transparent parts become white, as for the other clients; DALI ignores transparency. Bytes
after the image's end are ignored, so that a batch can be padded with zeros. Triton's Python
environment needs Pillow. config.pbtxt's parameters are size (pixels), mean, std (of 0 to 255) and
layout (HWC, CHW).
"""

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray
from PIL import Image, ImageOps

LARGEST = 89_000_000  # pixels


class TritonPythonModel:
    """The methods' names and arguments are Triton's."""

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {k: v["string_value"] for k, v in config["parameters"].items()}
        self.dtype = pb_utils.triton_string_to_numpy(config["output"][0]["data_type"])
        self.size, self.channels_first = int(parameters["size"]), parameters["layout"] == "CHW"
        self.mean, self.std = np.float32(parameters["mean"]), np.float32(parameters["std"])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request; an image that cannot be decoded fails its own request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        images = pb_utils.get_input_tensor_by_name(request, "DALI_INPUT_0").as_numpy()
        try:
            pixels = np.stack([self._pixels(image.tobytes()) for image in images])
        except (OSError, ValueError, SyntaxError) as err:  # what Pillow raises for what is no image
            error = pb_utils.TritonError(
                f"the image cannot be decoded: {err}", pb_utils.TritonError.INVALID_ARG
            )
            return pb_utils.InferenceResponse(error=error)
        return pb_utils.InferenceResponse([pb_utils.Tensor("DALI_OUTPUT_0", pixels)])

    def _pixels(self, encoded: bytes) -> NDArray[Any]:
        file = Image.open(io.BytesIO(encoded))
        if file.width * file.height > LARGEST:
            raise ValueError(f"it has {file.width}×{file.height} pixels, more than {LARGEST}")
        image = ImageOps.exif_transpose(file)
        # Pillow knows no transparency of these modes
        if image.has_transparency_data and image.mode[0] not in "IF":
            rgba = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
        small = image.convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)
        values = (np.asarray(small, np.float32) - self.mean) / self.std
        values = values.astype(self.dtype)
        return np.ascontiguousarray(values.transpose(2, 0, 1)) if self.channels_first else values
