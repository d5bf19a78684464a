"""Hogwild, HogWild++ and Dogwild: workers that never wait for each other."""
