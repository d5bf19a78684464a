"""L-BFGS by commands on vectors at the node, or by shipping the vectors: bytes and seconds."""
