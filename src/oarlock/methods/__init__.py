"""The methods, one file each, found by their decorator."""

from oarlock.methods._base import Method
from oarlock.methods._options import check_detector, config_class, configure
from oarlock.registry import Registry

__all__ = ["Method", "check_detector", "config_class", "configure", "method", "methods"]

methods: Registry[type[Method]] = Registry("method", __name__)
method = methods.register
