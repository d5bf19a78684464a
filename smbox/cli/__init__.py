"""The command line `smbox`: look at a memory, clean up after it, measure it."""
