"""Protectors: what lets tasks share a trunk without touching each other. One module each, found by its decorator."""

from oarlock.nets.protectors._base import Capacity, Protector
from oarlock.registry import Registry

__all__ = ["Capacity", "Protector", "protector", "protectors"]

protectors: Registry[type[Protector]] = Registry("protector", __name__)
protector = protectors.register
