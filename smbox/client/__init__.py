"""The client's end of the wire: one channel for each thread, and what travels on it."""
