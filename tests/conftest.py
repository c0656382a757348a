"""Settings of all tests."""

import signal

from hypothesis import settings

# A busy machine takes its time; what is slow is a matter of benchmarks/, not of examples.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# A shell starts what it puts in the background with Ctrl-C ignored, and children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
