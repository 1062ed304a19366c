"""Things people look at: pictures of a fit, in one style, and its HTML report; what ArviZ reads.

Nothing is imported here: `import provi` needs this room for the text of a call, and must not wait for matplotlib.
"""
