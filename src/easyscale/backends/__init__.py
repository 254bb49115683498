"""What starts and stops workers, by command line: local processes here, Ray in a package of its own.

A back end knows commands, environments and exit codes; not plans, steps or torch.
"""
