"""Images in small files: nothing is lost, whatever the pixels."""

import numpy as np

from provi_lab.data.cifar_parts import decode, encode


def test_what_is_encoded_comes_back():
    generator = np.random.default_rng(0)
    smooth = np.cumsum(generator.integers(-3, 4, (4, 32, 32, 3)), axis=1) + 128
    images = np.concatenate([smooth, generator.integers(0, 256, (4, 32, 32, 3))]).astype(np.uint8)
    images[0], images[1, ::2] = 255, 0
    np.testing.assert_array_equal(decode(encode(images)), images)
    assert not encode(np.full((1, 32, 32, 3), 7, np.uint8))[:, 1:, 1:].any()  # a plain area leaves nothing
