"""Downpour SGD, its variants with averages or momentum at the center, and SSP."""
