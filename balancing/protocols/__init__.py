"""The protocols of the PTLB/MSLB paper as machines: events in, instructions out."""
