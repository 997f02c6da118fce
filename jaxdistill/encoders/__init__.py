"""Sentence encoders: definitions, forward pass, reading and writing checkpoints, making students."""
