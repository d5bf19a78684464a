"""Elastic averaging: EASGD, synchronous EASGD, EAMSGD and SEASGD."""
