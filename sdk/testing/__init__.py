"""The conformance suite: what every backend must do, and what a third party runs against its own.

A driver's test is a subclass of each suite and a `backend`; `dsec conformance --driver NAME` runs them all.
Faults that a driver knows of are `xfail(strict=True)` in its subclass; skips follow declared capabilities.
"""
