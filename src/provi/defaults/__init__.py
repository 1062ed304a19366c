"""What `provi.fit(target)` does when no algorithm is named: the fastest method for the target's structure."""

from provi.defaults.choose import Answer, run_default

__all__ = ["Answer", "run_default"]
