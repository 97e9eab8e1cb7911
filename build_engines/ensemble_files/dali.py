"""A part of an ensemble, on Triton's DALI backend: encoded image UINT8 [n, bytes] -> pixels [n, …].

Decode, turn by EXIF, resize, (pixel - mean) / std. It runs on the processor, on machines with and
without a GPU; on a GPU, device_id=0 and device="mixed" for the decoder put all of it there.
"""

from typing import Any

import nvidia.dali as dali
from nvidia.dali import types
from nvidia.dali.plugin.triton import autoserialize

SIZE = 224
LAYOUT = "CHW"
MEAN, STD = 0, 1  # of pixels from 0 to 255


@autoserialize  # type: ignore[untyped-decorator]
@dali.pipeline_def(batch_size=16, num_threads=2, device_id=None)  # type: ignore[untyped-decorator]
def pipeline() -> Any:
    encoded = dali.fn.external_source(device="cpu", name="DALI_INPUT_0")
    image = dali.fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
    small = dali.fn.resize(image, resize_x=SIZE, resize_y=SIZE)
    return dali.fn.crop_mirror_normalize(
        small, dtype=types.FLOAT, output_layout=LAYOUT, mean=[MEAN] * 3, std=[STD] * 3
    )
