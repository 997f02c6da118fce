"""Text in: sources, the tokenised store, views, packing, batches and stored teacher targets."""
