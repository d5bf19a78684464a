"""Parameter server against ring: measured in the laboratory, and predicted by the planner."""
