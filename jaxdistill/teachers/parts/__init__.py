"""Parts that several kinds of teachers share."""
