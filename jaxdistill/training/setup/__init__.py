"""From a config to a run that is ready to train, every mistake of the config found before step 1."""
