"""What experiments and benchmarks share: runs and replicates, tables, claims and their page, and pictures."""
