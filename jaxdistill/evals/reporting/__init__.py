"""Tables, plots, model cards and HTML pages."""
