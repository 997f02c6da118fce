"""Finds, reads and writes models on disk, with their tokenizers, modules and cards."""
