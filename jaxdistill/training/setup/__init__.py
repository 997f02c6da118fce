"""Turns a config into a run that is ready to train; finds every mistake in the config before step 1."""
