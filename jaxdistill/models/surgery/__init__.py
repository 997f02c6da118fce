"""Makes smaller models from larger ones: fewer layers, dimensions, units and tokens."""
