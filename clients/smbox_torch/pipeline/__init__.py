"""Pipeline: the stages of a model in different processes."""
