"""The fixtures of these tests; what they are made of is in `oidc_scene`, which tests may import from."""

from oidc_scene import make_door, make_issuer

__all__ = ["make_door", "make_issuer"]
