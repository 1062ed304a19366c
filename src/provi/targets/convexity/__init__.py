"""Rules of disciplined convexity over traced programs: what can be proven of a potential from its code."""
