"""Publisher and Subscriber: weights of a trainer, in versions that readers pull."""
