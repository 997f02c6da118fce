"""Faults on purpose: what the program says, how it ends and what it leaves (docs/reliability.md)."""
