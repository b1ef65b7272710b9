"""The simulator: the gateway's own policies over engines that are arithmetic, on a clock that is a number.

Pure: no I/O, no clock, no randomness but a seed.  It imports what decides in the gateway and never decides
itself where a request goes.
"""
