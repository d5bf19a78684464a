"""The two ways to a region: in this process, and over the wire."""
