"""Vocabulary: errors, plans, specs, messages.

Only facts and pure functions live here, on the standard library alone: no torch, no clock, no
network, no file access. Everything above may import it; it imports nothing of ours.
"""
