"""The test bed: a virtual machine with Debian's cloud kernel and unified cgroups, for tests that need them.

    image.py      the guest, made from Debian packages once, kept and verified in the cache
    cargo.py      what a run brings along: the checkout with its virtual environment, the base image, the job
    machine.py    QEMU, for as long as the job takes
    __main__.py   `python -m tests.vm [pytest's arguments]`, which is `make test-vm`

See docs/testbed.md.
"""
