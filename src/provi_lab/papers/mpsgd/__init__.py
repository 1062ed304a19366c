"""Paper 004, MPSGD: Figures 1 to 3."""
