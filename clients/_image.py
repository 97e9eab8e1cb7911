"""The base class of clients that take one image. It resizes, crops and normalizes the image by the
settings of clients/_input.py."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clients._input import EXAMPLE, INTERPOLATIONS, SETTINGS, frame_of
from clients._resize import whole
from clients.base import Model, ModelClient, Parameter, Tensors, TensorSpec
from serving.codecs import IMAGE
from serving.errors import InferenceFailed

Pixels = NDArray[np.uint8]
# how many times its target a side may be: resizing a longer image before cropping it would take
# gigabytes
RIBBON = 16
# interpolations in which a rounding difference replaces a whole pixel
STEPS = ("nearest", "box")
# a JPEG may be decoded smaller, but to at least this multiple of its resized size: for 224 pixels,
# 12 megapixels are decoded at an eighth
AMPLE = 1.4


class ImageClient(ModelClient):
    """A model whose first input, whatever its name, is one image."""

    codec = IMAGE
    # whether answers are in pixels of the image as sent; it is then decoded at its full size
    answers_in_pixels = False
    settings: tuple[Parameter, ...] = SETTINGS

    def __init__(self, model: Model) -> None:
        """Read the settings. Raise InvalidRequest when shape and settings do not fit together."""
        super().__init__(model)
        options = self.options
        self.example = EXAMPLE
        self.input = model.inputs[0]
        self.frame = frame_of(self.input, options, model.max_batch_size)
        self.method = INTERPOLATIONS[options["interpolation"]]
        exact = options["exact"]
        if not (exact or self.answers_in_pixels):
            self.side = int(AMPLE * max(self.frame.resized))
        self.resizes_first = exact or options["interpolation"] in STEPS
        cuts = {"shortest": self._shortest, "stretch": self._stretch}
        self.resize = cuts.get(options["resize"]) or whole(self.frame, options)

    def prepare(self, instances: Sequence[Image.Image], parameters: Mapping[str, Any]) -> Tensors:
        """Return the input [n, *its shape]. Raise DecodingError for an image too narrow for
        keep_ratio."""
        pixels = [self.fit(image) for image in instances]
        # a single image is not copied
        stacked = np.stack(pixels) if len(pixels) > 1 else pixels[0][None]
        return {self.input.name: self.normalize(stacked)}

    def fit(self, image: Image.Image) -> Pixels:
        """Return an RGB image as pixels [height, width, channels] in the network's size and channel
        order."""
        grey = self.frame.channels == 1
        if grey:
            image = image.convert("L")
        pixels: Pixels = np.asarray(self.resize(image))
        if grey:
            return pixels[..., None]
        if self.options["channel_order"] == "bgr":
            return pixels[..., ::-1]
        return pixels

    def normalize(self, pixels: Pixels) -> NDArray[Any]:
        """Return pixels [n, height, width, channels] in the input's datatype and layout, [n, *its
        shape]."""
        frame = self.frame
        ordered = pixels if frame.channels_last else pixels.transpose(0, 3, 1, 2)
        if frame.dtype == np.uint8:
            values: NDArray[Any] = np.ascontiguousarray(ordered)
        else:
            values = np.multiply(ordered, frame.gain, out=np.empty(ordered.shape, np.float32))
            values += frame.offset
            values = values.astype(frame.dtype, copy=False)
        return values[:, None] if frame.own_batch else values

    def _shortest(self, image: Image.Image) -> Image.Image:
        """Resize the image to cover `resized`, then crop the centre, as torchvision and
        transformers do for ImageNet. Unless `resizes_first`, compute only the crop: Pillow then
        takes two thirds of the time, and rounding differs less than between torchvision's own two
        methods."""
        width, height = image.size
        least_height, least_width = self.frame.resized
        covering = (least_height * width // height, least_height)
        if least_width * height >= least_height * width:
            covering = (least_width, least_width * height // width)
        crop = self._centre(covering)
        excess = max(covering[0] / least_width, covering[1] / least_height)
        if self.resizes_first and excess <= RIBBON:
            return image.resize(covering, self.method).crop(crop)
        # the same crop in pixels of the image, clipped to it because of rounding
        x = width / covering[0]
        y = height / covering[1]
        left, top, right, bottom = crop
        source = (left * x, top * y, min(right * x, width), min(bottom * y, height))
        return image.resize(self.frame.size[::-1], self.method, box=source)

    def _stretch(self, image: Image.Image) -> Image.Image:
        sides = self.frame.resized[::-1]
        return image.resize(sides, self.method).crop(self._centre(sides))

    def _centre(self, sides: tuple[int, int]) -> tuple[int, int, int, int]:
        """Return the box of the centre. Half a pixel is rounded down, as transformers does;
        torchvision rounds it to even."""
        height, width = self.frame.size
        left = (sides[0] - width) // 2
        top = (sides[1] - height) // 2
        return (left, top, left + width, top + height)

    def finite(self, outputs: Tensors, name: str) -> NDArray[np.float32]:
        """Return an output as FP32. Raise InferenceFailed when it is not finite."""
        values: NDArray[np.float32] = outputs[name].astype(np.float32, copy=False)
        if not np.isfinite(values).all():
            raise InferenceFailed(f"output '{name}' of model '{self.model.name}' is not finite")
        return values

    def shape_of_each(self, output: TensorSpec) -> tuple[int, ...]:
        """Return the output's shape for one image, without a batch dimension of the network's
        own, which its input then has too."""
        own_batch = self.frame.own_batch and output.shape[:1] in ((1,), (-1,))
        return output.shape[int(own_batch) :]

    def of_each(self, outputs: Tensors, name: str) -> NDArray[np.float32]:
        """Return an output as FP32 with one row for each image, also if the network has a batch
        dimension of its own. Raise InferenceFailed when it is not finite."""
        values = self.finite(outputs, name)
        if self.frame.own_batch and values.shape[1:2] == (1,):
            return values[:, 0]
        return values
