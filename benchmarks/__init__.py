"""Benchmarks: each compares the engine with the least that could do the same, in one run, and states its goal.

A benchmark is an asynchronous function with the decorator `@benchmark`. To add one to `make bench`, name its file in
`__main__`. It runs in its own process and home directory, so it needs nothing of the others and leaves them nothing.
"""
