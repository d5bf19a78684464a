"""What carries messages between a client and a memory node."""
