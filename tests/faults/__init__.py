"""Programs that are killed, and what they must come to (docs/reliability.md)."""
