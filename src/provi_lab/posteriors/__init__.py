"""Posteriors of many kinds with references by long runs, and how well each method of ProVI does on them."""
