"""Parts that several kinds of students share."""
