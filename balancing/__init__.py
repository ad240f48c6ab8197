"""Decisions and protocols of load balancing, without I/O: load model, triggers, policies, forecasts, PTLB and MSLB."""
