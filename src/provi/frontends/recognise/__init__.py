"""Linear models and their likelihoods, found by a proof in a traced program."""
