"""Intra-job decisions, pure: how fast a job is on given devices, which EST runs where, what more devices would bring.

No clock, no randomness, no I/O; the standard library and NumPy.
"""
