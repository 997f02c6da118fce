"""The way from a config to an exported student."""
