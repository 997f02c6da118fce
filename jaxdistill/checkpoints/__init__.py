"""Models on disk: finding, reading and writing them, with their tokenizers, modules and licences."""
