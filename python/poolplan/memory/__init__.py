"""What memory a device and its host have, read once before anything is allocated."""

from poolplan.memory.device import DeviceMemory
from poolplan.memory.host import HostMemory

__all__ = ["DeviceMemory", "HostMemory"]
