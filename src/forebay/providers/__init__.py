"""Dialects of what answers a model.  Pure."""
