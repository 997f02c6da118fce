"""Makes second views of sentences: by synonyms, a masked language model, or translation."""
