"""A module that needs a package which is not installed."""

import no_such_package  # noqa: F401
