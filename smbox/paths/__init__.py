"""The two data paths to a region: in this process, and over the wire."""
