"""Data that the lab makes or prepares, beside what `provi.data` loads."""
