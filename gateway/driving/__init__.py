"""Connects exchanges with the controller: in this process, or in another one."""
