"""Defines the base class of clients that take one image. It resizes and normalizes the image, and
crops or pads it, according to the settings in clients/_image_settings.py."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clients._image_settings import EXAMPLE, SETTINGS, frame_of, keeps_ratio
from clients._resize import RULES
from clients.base import Array, Floats, Model, ModelClient, Parameter, Tensors, TensorSpec, Values
from serving.codecs import IMAGE
from serving.errors import InferenceFailed

Pixels = NDArray[np.uint8]
# A JPEG may be decoded at a reduced size, but at no less than this multiple of the size to which it
# is resized. If that is 224 pixels, a JPEG of 12 megapixels is decoded at an eighth of its width
# and height.
AMPLE = 1.4


class ImageClient(ModelClient):
    """Serves a model whose first input is an image. The input may have any name."""

    codec = IMAGE
    example = EXAMPLE
    settings: tuple[Parameter, ...] = SETTINGS

    def __init__(self, model: Model) -> None:
        """Read the settings. Raise InvalidRequest if one is invalid, or does not fit the input."""
        super().__init__(model)
        options = self.options
        self.input = model.inputs[0]
        self.frame = frame_of(self.input, options, model.max_batch_size)
        if not options["exact"]:  # otherwise images are decoded at full size
            # with keep_ratio, the second number of `resized` is only a limit
            shorter = self.frame.resized[0]
            side = shorter if keeps_ratio(options) else max(self.frame.resized)
            self.side = int(AMPLE * side)
        self.resize = RULES[options["resize"]]

    def prepare(self, instances: Sequence[Image.Image], parameters: Values) -> Tensors:
        """Return the input for n images, an array [n, *the input's shape]. Raise DecodingError for
        an image that is too narrow for keep_ratio."""
        pixels = [self.fit(image) for image in instances]
        # a single image is not copied
        stacked = np.stack(pixels) if len(pixels) > 1 else pixels[0][None]
        return {self.input.name: self.normalize(stacked)}

    def fit(self, image: Image.Image) -> Pixels:
        """Resize an RGB image, and crop or pad it, to the size of the network's input. Return its
        pixels [height, width, channels] in the network's channel order."""
        is_grey = self.frame.channels == 1
        if is_grey:
            image = image.convert("L")
        pixels: Pixels = np.asarray(self.resize(image, self.frame, self.options))
        if is_grey:
            return pixels[..., None]
        if self.options["channel_order"] == "bgr":
            return pixels[..., ::-1]
        return pixels

    def normalize(self, pixels: Pixels) -> Array:
        """Convert pixels [n, height, width, channels] to the input's datatype and layout. Return
        [n, *the input's shape]."""
        frame = self.frame
        ordered = pixels if frame.channels_last else pixels.transpose(0, 3, 1, 2)
        if frame.dtype == np.uint8:
            values: Array = np.ascontiguousarray(ordered)
        else:
            values = np.multiply(ordered, frame.gain, out=np.empty(ordered.shape, np.float32))
            values += frame.offset
            values = values.astype(frame.dtype, copy=False)
        return values[:, None] if frame.own_batch else values

    def finite(self, outputs: Tensors, name: str) -> Floats:
        """Return an output as FP32. Raise InferenceFailed if it has infinite or NaN values."""
        values: Floats = outputs[name].astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            raise InferenceFailed(f"output '{name}' of model '{self.model.name}' is not finite")
        return values

    def shape_of_each(self, output: TensorSpec) -> tuple[int, ...]:
        """Return the output's declared shape for one image, without the batch dimension that the
        network itself may have."""
        own_batch = self.frame.own_batch and output.shape[:1] in ((1,), (-1,))
        return output.shape[int(own_batch) :]

    def of_each(self, outputs: Tensors, name: str) -> Floats:
        """Return an output as FP32 with one row for each image, even if the network has a batch
        dimension of its own. Raise InferenceFailed if it has infinite or NaN values."""
        values = self.finite(outputs, name)
        if self.frame.own_batch and values.shape[1:2] == (1,):
            return values[:, 0]
        return values
