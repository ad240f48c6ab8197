"""The distribution manager: runs the pure machines of `balancing` against Redis."""
