"""Rotated images against NumPy's quarter turns, a bilinear interpolation written out, and a symmetric image."""

import numpy as np
import pytest

from provi.models.network.plots import rotate

RNG = np.random.default_rng(0)


def bilinear(image, row, column):
    """The image at a place between pixels, 0 outside; written out for one place."""
    total = 0.0
    for i in (int(np.floor(row)), int(np.floor(row)) + 1):
        for j in (int(np.floor(column)), int(np.floor(column)) + 1):
            if 0 <= i < image.shape[0] and 0 <= j < image.shape[1]:
                total += image[i, j] * (1 - abs(row - i)) * (1 - abs(column - j))
    return total


@pytest.mark.parametrize("shape", [(3, 7, 7), (3, 6, 6, 2)])
def test_quarter_turns_are_those_of_numpy(shape):
    images = RNG.random(shape).astype(np.float32)
    for turns in range(5):
        expected = np.rot90(images, turns, axes=(1, 2))
        np.testing.assert_allclose(rotate(images, 90.0 * turns), expected, atol=1e-5)


def test_an_angle_between_against_interpolation_by_hand():
    images, angle = RNG.random((2, 8, 11)), np.deg2rad(33.0)
    turned = rotate(images, 33.0)
    centre = np.array([3.5, 5.0])
    for i, j in np.ndindex(8, 11):
        # The pixel at (i, j) comes from the place turned back; rows run downwards.
        down, right = i - centre[0], j - centre[1]
        place = centre + [
            down * np.cos(angle) + right * np.sin(angle),
            -down * np.sin(angle) + right * np.cos(angle),
        ]
        if (place >= 0).all() and (place <= [7, 10]).all():  # at the rim conventions differ
            np.testing.assert_allclose(turned[:, i, j], [bilinear(image, *place) for image in images], atol=1e-5)


def test_size_type_and_a_disc():
    rows, columns = np.mgrid[-10:11, -10:11]
    disc = np.exp(-(rows**2 + columns**2) / 20.0)[None]
    turned = rotate(disc, 45.0)
    assert turned.shape == disc.shape and turned.dtype == np.float32
    np.testing.assert_allclose(turned, disc, atol=0.025)  # second derivatives of at most 1/10 in two axes, /8


@pytest.mark.parametrize(
    ("images", "degrees", "message"), [(np.ones((5, 5)), 10, "shape"), (np.ones((1, 5, 5)), np.nan, "degrees")]
)
def test_bad_arguments_are_named(images, degrees, message):
    with pytest.raises(ValueError, match=message):
        rotate(images, degrees)
