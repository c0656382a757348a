"""Comparing two endpoints: do they answer alike, and how fast.

``client`` is the only module that touches the network and ``run`` the only one that drives it.
Every other module takes data and gives data. Needs the packages of the extra ``parity``.
"""
