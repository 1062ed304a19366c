"""Small tools every other room uses: types, precision, pytree arithmetic, checks, outcomes."""
