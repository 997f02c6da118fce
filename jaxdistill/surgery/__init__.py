"""Makes smaller models from larger ones: fewer layers, dimensions, heads, units and tokens."""
