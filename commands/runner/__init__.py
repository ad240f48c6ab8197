"""A join without a program: `trimtab run query.yaml`, and the same file through spark-submit."""
