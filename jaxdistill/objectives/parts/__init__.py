"""Objectives that wrap another one."""
