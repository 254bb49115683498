"""Workers and masters as processes on the nodes of a Ray cluster.

`launcher` starts workers and finds them again, `masters` does so with the masters of jobs, `cluster` knows nodes and
devices, `demand` asks the autoscaler for more. On a node, a `keeper` looks after each process. Ray is imported here and
nowhere else.
"""
