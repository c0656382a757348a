"""Manifests: what a replica of several nodes needs on Kubernetes, rendered from parameters."""
