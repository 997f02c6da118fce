"""Devices and processes: the mesh, agreement between processes, folders that they share."""
