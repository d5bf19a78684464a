"""Helpers for tests of smbox and its users: contracts, models, faults, oracles."""
