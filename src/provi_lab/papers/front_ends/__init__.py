"""The three front-ends beside one another and beside NUTS."""
