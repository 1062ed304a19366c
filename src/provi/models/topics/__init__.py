"""The correlated topic model: the parts of `CorrelatedTopicModel`."""
