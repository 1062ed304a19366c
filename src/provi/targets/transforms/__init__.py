"""Maps between constrained parameters and R^d, and which constraint needs which."""
