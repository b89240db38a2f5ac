"""Sandbox networks with a list of hosts: a proxy of the server is the only way out."""
