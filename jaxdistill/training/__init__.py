"""Trains a student: from a config to an exported model."""
