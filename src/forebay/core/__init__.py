"""The words that everybody shares: errors, routes, events, keys, the clock.  No I/O happens here."""
