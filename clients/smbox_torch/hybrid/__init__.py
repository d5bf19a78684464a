"""HybridSGD: synchronous SGD inside groups of workers, elastic averaging between them."""
