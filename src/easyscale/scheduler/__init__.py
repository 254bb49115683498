"""Inter-job decisions, pure: the state of a cluster folded from events, policies, and the rules that none may break.

No clock, no randomness, no I/O: the time is in the events. The same code decides live and simulated.
"""
