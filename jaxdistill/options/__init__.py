"""Config files, presets, `--config.X=Y` on the command line, and the help on all options."""
