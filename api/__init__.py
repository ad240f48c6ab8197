"""The REST API of the distribution manager."""
