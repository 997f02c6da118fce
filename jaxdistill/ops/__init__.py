"""Array operations whose plain form is too slow or too large."""
