"""Fakes and peers for tests, ours and the users': a scriptable upstream, a virtual clock."""
