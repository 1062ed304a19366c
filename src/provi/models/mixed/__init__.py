"""Mixed models from formulas: fixed effects, effects that vary by group, structured effects."""
