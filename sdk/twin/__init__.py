"""What the twin of the SDK for programs without asyncio stands on; the twin itself is `dsec.sync`."""
