"""Settings of all tests."""

from hypothesis import settings

# A busy machine takes its time; what is slow is a matter of benchmarks/, not of examples.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
