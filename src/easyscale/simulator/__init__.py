"""Clusters in virtual time: the same planner, scheduler and master code, with jobs that progress by a model.

What is simulated is here alone: the clock, the devices, the jobs. Nothing outside knows that it is not real.
"""
