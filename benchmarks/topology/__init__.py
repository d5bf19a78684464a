"""Two islands of hosts with a slow link between them: which hierarchy, and is it faster."""
