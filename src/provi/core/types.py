"""Names for the array shapes that the whole library speaks of."""

from typing import TypeAlias

from jaxtyping import Array, Bool, Float, Int, Key, UInt32

Scalar: TypeAlias = Float[Array, ""]
"""One number."""

Vector: TypeAlias = Float[Array, " dim"]
"""A point of the latent space, or a gradient there."""

Matrix: TypeAlias = Float[Array, "dim dim"]
"""A square matrix over the latent space."""

Draws: TypeAlias = Float[Array, "draws dim"]
"""Monte-Carlo draws, one a row."""

Indices: TypeAlias = Int[Array, " batch"]
"""Positions of data terms."""

Count: TypeAlias = Int[Array, ""]
"""A step number, a number of draws: an integer that may change without recompilation."""

Flag: TypeAlias = Bool[Array, ""]
"""One truth value."""

Words: TypeAlias = UInt32[Array, "2"]
"""A number of 64 bits, in two words: JAX has longer integers in double precision only."""

RandomKey: TypeAlias = Key[Array, ""] | UInt32[Array, "2"]
"""A JAX random key, typed or raw."""
