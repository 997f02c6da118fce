"""Array operations whose plain form would be too slow or need too much memory."""
