"""The command line's side of the REST API."""
