"""One node of a replica: plan, preflight, agreement with the other nodes, watch, health.

On the path of a container's entrypoint: standard library only.
"""
