"""Marks of tests that allow less than others."""

import pytest

# Any warning fails the test (of a glyph that is missing, say, or a map that has no room), but for those of a resource
# that another test left open and that is only collected now.
no_warning = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")
