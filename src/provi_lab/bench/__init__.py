"""ProVI beside other libraries on the same problems, and on its own on larger linear models.

Every method runs in a process of its own (`peers`), so that no library warms up or slows down another.
"""
