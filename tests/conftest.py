"""What holds for all tests."""

import signal

# A shell starts what it puts into the background with SIGINT ignored, and children inherit that: the tests of
# Ctrl-C would depend on how the suite was started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
