"""Forebay: AI inference at scale over your own machines and the clouds, behind one gateway.

This module stays light (`import forebay` loads nothing else), because every process, the command line
included, pays for it.
"""

from forebay.version import __version__

__all__ = ["__version__"]
