"""Model formulas, "y ~ x + (1 | group)", and a table made into arrays; the same encoding is applied to new tables."""
