"""Programs that are killed, whose results must stay the same (docs/reliability.md)."""
