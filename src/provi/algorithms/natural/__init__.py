"""Natural-gradient methods."""
