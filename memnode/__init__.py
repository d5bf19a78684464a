"""The memory node: the process that owns the memory and serves it over the wire."""
