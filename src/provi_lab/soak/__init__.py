"""Kills, damaged files, hostile inputs and certificates against an oracle, by the hundred: `python -m provi_lab.soak`.

Every case is a function of (seed, kind, number), so that a violation is reproduced by the line that reports it.
"""
