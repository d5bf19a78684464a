"""The base of the algorithms: an optimizer around an optimizer, and the center."""
