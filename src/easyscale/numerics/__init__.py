"""What decides bits: levels and records, fingerprints, random states, buckets, the order of sums.

May import torch and `core`. Nothing here starts processes, talks to peers or knows of a job.
"""
