"""Do the tests notice a wrong sign? One small change of the code at a time: `python -m provi_lab.mutation`."""
