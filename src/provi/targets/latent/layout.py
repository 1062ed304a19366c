r"""Where the latent coordinates of a model lie in a bordered matrix: which blocks are eliminated, in which order.

The precision of the best Gaussian has the pattern of $Q + A'A$, Q the prior precision and A the rows of the data. Some
blocks of effects go into the part T of `core.bordered`, the others into its dense border. Of T's graph the connected
components are the blocks where they are small (groups, and groups within groups); else the coordinates are put into the
reverse Cuthill-McKee order and T is cut at its bandwidth (walks, graphs). Every choice of blocks is priced, and the
cheapest taken.
"""

import dataclasses
import itertools
from typing import Any

import equinox as eqx
import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from provi.targets.latent.blocks import AbstractBlock, Independent

_LARGEST_COMPONENT, _SMALLEST_CHAIN, _TRIED = 48, 16, 5
_CHAIN = 100
"""What a multiplication in a chain costs beside one in a dense matrix: its blocks come one after the other."""


class Layout(eqx.Module):
    """n blocks of b coordinates, tridiagonal or not, and p coordinates in the border.

    - `inside`: which blocks of effects lie in T. - `place`: of each latent coordinate in T, or -1; `slot`: in the
      border, or -1. - `source`: the latent coordinate at each place of T, or -1 for padding.
    """

    count: int = eqx.field(static=True)
    width: int = eqx.field(static=True)
    border: int = eqx.field(static=True)
    chained: bool = eqx.field(static=True)
    inside: tuple[bool, ...] = eqx.field(static=True)
    place: np.ndarray
    slot: np.ndarray
    source: np.ndarray

    @property
    def work(self) -> float:
        """Multiplications of one factorisation, without those of the rows."""
        n, b, p = self.count, self.width, self.border
        return float(n * b * (b * b * (_CHAIN if self.chained else 1) + b * p + p * p) + p**3)


@dataclasses.dataclass(frozen=True)
class _Order:
    """Of the coordinates of T: `place` in the padded blocks."""

    count: int
    width: int
    chained: bool
    place: np.ndarray


def choose_layout(num_fixed: int, blocks: tuple[AbstractBlock, ...], num_rows: int) -> Layout:
    """The cheapest layout of `num_fixed` dense coordinates and these blocks of effects."""
    sizes = [block.size for block in blocks]
    wide = [_entries(block) for block in blocks]
    able = [k for k, block in enumerate(blocks) if wide[k] < block.size or block.size == 1]
    # Only the largest few are worth trying.
    able = sorted(able, key=lambda k: -sizes[k])[:_TRIED]
    best: tuple[float, Layout] | None = None
    for number in range(len(able) + 1):
        for some in itertools.combinations(able, number):
            chosen = tuple(sorted(some))  # in the model's order, in which `_layout` reads the places
            border = num_fixed + sum(blocks[k].tail if k in chosen else size for k, size in enumerate(sizes))
            if best is not None and num_rows * border**2 + border**3 > best[0]:
                continue
            order = _order([blocks[k] for k in chosen])
            layout = _layout(num_fixed, blocks, chosen, order, border)
            local = sum(wide[k] for k in chosen)
            price = layout.work + num_rows * ((border + 1) ** 2 + local * border + local**2)
            if best is None or price < best[0]:
                best = price, layout
    assert best is not None
    return best[1]


def _entries(block: AbstractBlock) -> int:
    """Of a row of the block, at most."""
    if isinstance(block, Independent):
        return block.width
    return block_rows(block).shape[1]


def block_rows(block: AbstractBlock) -> np.ndarray:
    """The columns of the block's rows, on the host: (N, r)."""
    middle = [prior.typical for prior in block.priors.values()]
    return np.asarray(block.rows(middle).index)


def _layout(
    num_fixed: int, blocks: tuple[AbstractBlock, ...], chosen: tuple[int, ...], order: _Order, border: int
) -> Layout:
    total = num_fixed + sum(block.size for block in blocks)
    place, slot = np.full(total, -1, np.int32), np.full(total, -1, np.int32)
    slot[:num_fixed] = np.arange(num_fixed)
    start, inner, outer = num_fixed, 0, num_fixed
    for k, block in enumerate(blocks):
        here = slice(start, start + block.size)
        if k in chosen:
            held = block.size - block.tail
            place[start : start + held] = order.place[inner : inner + held]
            slot[start + held : start + block.size] = outer + np.arange(block.tail)
            inner, outer = inner + held, outer + block.tail
        else:
            slot[here] = outer + np.arange(block.size)
            outer += block.size
        start += block.size
    source = np.full(order.count * order.width, -1, np.int32)
    held = np.flatnonzero(place >= 0)
    source[place[held]] = held
    inside = tuple(k in chosen for k in range(len(blocks)))
    return Layout(order.count, order.width, border, order.chained, inside, place, slot, source)


def _order(blocks: list[AbstractBlock]) -> _Order:
    """Of the coordinates of these blocks: one block of T for each connected component, or a chain."""
    size = sum(block.size - block.tail for block in blocks)
    if not size:
        return _Order(0, 0, False, np.zeros(0, np.int32))
    if len(blocks) == 1 and isinstance(blocks[0], Independent):
        return _Order(blocks[0].num_levels, blocks[0].width, False, np.arange(size, dtype=np.int32))
    graph = _graph(blocks, size)
    number, part = csgraph.connected_components(graph, directed=False)
    sizes = np.bincount(part, minlength=number)
    largest = int(sizes.max())
    if largest <= _LARGEST_COMPONENT:
        sequence = np.argsort(part, kind="stable")
        first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        place = np.empty(size, np.int32)
        place[sequence] = part[sequence] * largest + (np.arange(size) - first[part[sequence]])
        return _Order(int(number), largest, False, place)
    sequence = csgraph.reverse_cuthill_mckee(graph, symmetric_mode=True)
    rank = np.empty(size, np.int32)
    rank[sequence] = np.arange(size, dtype=np.int32)
    entries = sparse.coo_matrix(graph)
    band = int(np.abs(rank[entries.row] - rank[entries.col]).max(initial=1))
    width = min(max(band, _SMALLEST_CHAIN), size)
    return _Order(-(-size // width), width, -(-size // width) > 1, rank)


def _graph(blocks: list[AbstractBlock], size: int) -> Any:
    """Which coordinates meet: in a row of the data or in the prior precision."""
    parts, start = [], 0
    pairs = [(np.arange(size), np.arange(size))]
    for block in blocks:
        rows, pattern, held = block_rows(block), block.pattern, block.size - block.tail
        parts.append(start + rows[:, : rows.shape[1] - block.tail])
        if pattern is not None:
            left, right = np.asarray(pattern.rows), np.asarray(pattern.columns)
            inside = (left < held) & (right < held)
            pairs.append((start + left[inside], start + right[inside]))
        start += held
    index = np.unique(np.concatenate(parts, axis=1), axis=0)
    rows = np.repeat(np.arange(len(index)), index.shape[1])
    incidence = sparse.csr_matrix((np.ones(index.size), (rows, index.ravel())), (len(index), size))
    left, right = (np.concatenate(x) for x in zip(*pairs, strict=True))
    prior = sparse.csr_matrix((np.ones(len(left)), (left, right)), (size, size))
    return ((incidence.T @ incidence + prior + prior.T) != 0).astype(np.int8).tocsr()
