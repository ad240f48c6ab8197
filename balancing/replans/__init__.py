"""Changes of a worker's plan while the query runs: table, machine, requests, and how they meet epochs and batches."""
