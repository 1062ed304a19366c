"""Standardised draws for expectations under the documents' Gaussian posteriors."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from provi.models.corpus import CHUNK


class BaseDraws(NamedTuple):
    """Standardised points (CHUNK, draws, topics), a set of its own for each document of a chunk; chances (draws,)."""

    points: Any
    chances: Any


def base_draws(key: Any, num_draws: int, num_topics: int, dtype: Any = None) -> BaseDraws:
    r"""Zero with the chance $2/(K+2)$, and `num_draws` points $\pm\sqrt{K+2}$ times orthonormal vectors.

    The radii have the second and fourth moment of a standard normal's. The vectors are the columns of random
    rotations, one for each 2K points: in full blocks polynomials of degree three have their exact mean.
    """
    blocks = -(-num_draws // (2 * num_topics))
    columns = _rotations(key, CHUNK * blocks, num_topics, dtype) * np.sqrt(num_topics + 2)
    columns = columns.reshape(CHUNK, blocks * num_topics, num_topics)
    points = jnp.stack([columns, -columns], axis=2).reshape(CHUNK, -1, num_topics)[:, :num_draws]
    points = jnp.pad(points, ((0, 0), (1, 0), (0, 0))).astype(dtype)
    centre = 2 / (num_topics + 2)
    chances = np.concatenate([[centre], np.full(num_draws, (1 - centre) / num_draws)])
    return BaseDraws(points, jnp.asarray(chances.astype(points.dtype)))


def _rotations(key, number, size, dtype):
    """Orthogonal matrices (number, size, size), uniform up to the signs of columns: Stewart's (1980) reflections.

    No QR factorisation: in one CPU program with the Cholesky factorisations of `infer`, jaxlib 0.10.2 hung for 100
    topics with all threads idle; without either of the two it did not.
    """
    normals = jax.random.normal(key, (size, number, size), dtype)
    places = np.arange(size)

    def reflect(k, matrices):
        x = jnp.where((places >= k)[None, :], normals[k], 0)
        end = jnp.where((places == k)[None, :], jnp.where(x < 0, -1, 1), 0) * jnp.linalg.norm(x, axis=1, keepdims=True)
        axis = (x + end) / jnp.linalg.norm(x + end, axis=1, keepdims=True)
        return matrices - 2 * jnp.einsum("nij,nj->ni", matrices, axis)[:, :, None] * axis[:, None, :]

    start = jnp.broadcast_to(jnp.eye(size, dtype=normals.dtype), (number, size, size))
    return jax.lax.fori_loop(0, size, reflect, start)


def draws_from(mean: Any, root: Any, points: Any) -> Any:
    r"""$z_s = m + L\epsilon_s$ for one document: points (draws, topics), `root` as in `LocalPosterior`."""
    return mean[None, :] + (points * root[None, :] if root.ndim == 1 else points @ root.T)
