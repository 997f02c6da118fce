"""Sentence encoders: architectures, families, and the forward pass from tokens to vectors."""
