"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# A property holds or it does not; how long a case takes on a loaded machine says nothing about it.
settings.register_profile("trimtab", deadline=None)
settings.load_profile("trimtab")
