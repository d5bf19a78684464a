"""The workers of a run: who is there, how far they are, and what each one reports."""
