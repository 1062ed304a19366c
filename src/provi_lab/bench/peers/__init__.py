"""The libraries, one a module: its solvers are functions `solver(problem, setting, record)`.

`python -m provi_lab.bench.launch provi_lab.bench.peers.LIBRARY:SOLVER problem.npz trace.npz --setting S --seconds T`
runs one of them. A module imports its own library and what needs nothing but NumPy, or the launcher could not run it in
a Python without JAX.
"""
