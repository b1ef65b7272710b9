"""The gateway's decisions.  Pure: no I/O, clock, randomness or logging."""
