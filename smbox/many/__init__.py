"""Several memory nodes as one address space, on top of each node's own box."""
