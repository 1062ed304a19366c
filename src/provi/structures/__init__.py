"""What `provi.fit` and `provi.certify` do for each kind of target: default family, start, run, bounds, comparison."""
