"""Devices and processes: the mesh, agreement between processes, and shared folders."""
