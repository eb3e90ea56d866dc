"""One part of the control plane in a process of its own: `process.py PART URL HOME`; says "ready", ends on
SIGTERM and with its parent, whose pipe is its standard input. Killed by tests.
"""

import asyncio
import signal
import sys
from pathlib import Path

from dsec.bus.home import Home
from dsec.bus.host import Context, plugin
from dsec.bus.nats.credentials import Credentials


async def main(part: str, url: str, home: Home) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    credentials = Credentials.load(home.credentials / f"{part}.json")
    async with plugin(part, url, credentials, Context(home.part(part))):
        print("ready", flush=True)
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Home(Path(sys.argv[3]))))
