"""Decodes images as a part of an ensemble, on Triton's DALI backend. It takes encoded images, UINT8
[n, bytes], and returns pixels, UINT8 [n, 3, 224, 224].

The pipeline decodes an image, rotates it according to EXIF, and resizes it, on the first GPU. It
has not been run yet. Its form is that of the example in the README of dali_backend.
"""

from typing import Any

import nvidia.dali as dali
from nvidia.dali import types
from nvidia.dali.plugin.triton import autoserialize

SIDE = 224


@autoserialize  # type: ignore[untyped-decorator]
@dali.pipeline_def(batch_size=16, num_threads=2, device_id=0)  # type: ignore[untyped-decorator]
def pipeline() -> Any:
    encoded = dali.fn.external_source(device="cpu", name="DALI_INPUT_0")
    image = dali.fn.decoders.image(encoded, device="mixed", output_type=types.RGB)
    small = dali.fn.resize(image, resize_x=SIDE, resize_y=SIDE)
    return dali.fn.transpose(small, perm=[2, 0, 1])
