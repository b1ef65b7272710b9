"""The registry: versions of models as immutable contents, with numbers, aliases and tags."""
