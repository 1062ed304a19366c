"""The lab of ProVI: reproductions of the papers, and benchmarks beside other libraries. Nothing in `provi` needs it.

`provi reproduce` runs `provi_lab.papers`, `provi bench` runs `provi_lab.bench`.
"""
