"""Split and union: the query definition and the operators that carry rows to the workers and back."""
