"""Sizes rounded up, so that data of similar size share one compiled program."""

from provi.core.checks import check_count


def padded_size(size: int, smallest: int) -> int:
    """`size` rounded up to a multiple of `smallest`, or of an eighth of its power of two if that is more.

    At most an eighth is wasted on large sizes, and between n and 2n there are at most eight programs to compile.
    """
    step = smallest
    while 16 * step <= check_count("size", size, minimum=0):
        step *= 2
    return max(step, -(-size // step) * step)
