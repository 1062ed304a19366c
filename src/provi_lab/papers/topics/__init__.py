"""Paper 002, the correlated topic model: Figure 3."""
