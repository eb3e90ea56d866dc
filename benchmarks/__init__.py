"""What `dsec bench NAME` runs. A benchmark starts what it needs, cleans up, and returns its figures.

Each module has `async def run(tell) -> dict`: `tell(text)` shows progress; the result has figures by the
keys of SPECIFICATION.md. CPU milliseconds repeat on shared machines; wall times do not, so each wall
time stands beside a peer or a floor measured in the same run.
"""
