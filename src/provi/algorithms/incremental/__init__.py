"""Methods with a table of surrogates: MISO, MISSO and their kind."""
