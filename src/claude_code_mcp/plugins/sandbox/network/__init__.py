"""The network of a sandbox by a list of hosts: a proxy of the server is its only way out."""
