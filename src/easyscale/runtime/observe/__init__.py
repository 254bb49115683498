"""What `easyscale verify` sees inside a worker: digests of each local step, operators one by one, planted differences.

Engines know one name from here, `Observer`. Nothing in here may draw a random number or change a tensor, except
`plant`, which is there to do so.
"""
