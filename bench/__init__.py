"""Measurements of the running system, each beside a peer that does the least that could do the job."""
