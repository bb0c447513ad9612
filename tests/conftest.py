"""Settings of all tests: property tests are reproducible and not judged by the clock."""

from hypothesis import settings

settings.register_profile("longstride", deadline=None, derandomize=True)
settings.load_profile("longstride")
