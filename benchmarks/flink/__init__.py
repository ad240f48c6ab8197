"""Apache Flink, as a process that runs the benchmark's join when it is asked to."""
