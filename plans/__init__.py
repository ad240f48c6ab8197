"""Join plans as data: trees, and what can be said about them without running them."""
