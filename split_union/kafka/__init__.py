"""Kafka in and out: records to rows and results to records (docs/kafka.md)."""
