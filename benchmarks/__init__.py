"""Benchmarks: each compares the engine with the least that could do the same, in one run, and states its goal.

A benchmark is an asynchronous function in a file of its own, marked with `@benchmark`; naming the file in
`__main__` adds it to `make bench`.
"""
