"""Second views of sentences: synonyms, masked words, translation."""
