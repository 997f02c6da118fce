"""Sentence encoders: definitions, forward pass, weights in and out, students by surgery."""
