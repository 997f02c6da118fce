"""Config files, presets, `--config.X=Y` on the command line, and the help that lists all options."""
