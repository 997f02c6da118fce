"""Smaller models out of larger ones: fewer layers, numbers, heads, units and tokens."""
