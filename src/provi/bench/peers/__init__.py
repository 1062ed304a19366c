"""One library a file, each a program: `python -m provi.bench.peers.NAME problem.npz trace.npz --setting S --seconds T`.

A peer is a function `solve(problem, setting, record)` handed to `provi.bench.protocol.serve`.
"""
