"""scikit-learn's handwritten digits (1,797 images of 8×8, UCI ML repository), split once for everyone."""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

Digits = tuple[NDArray[np.uint8], NDArray[np.int64]]


def split() -> tuple[Digits, Digits]:
    """(training, held-out) as (images [n,8,8] uint8 0-255 with ink bright, labels [n]); a fifth held out.

    The file is ordered by writer, so the held-out fifth is chosen at random with a fixed seed.
    """
    data = load_digits()
    images = np.round(data.images * (255 / 16)).astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(images))
    held_out, training = np.split(order, [len(images) // 5])
    return (images[training], data.target[training]), (images[held_out], data.target[held_out])
