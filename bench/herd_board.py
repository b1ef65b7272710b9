"""The board between the workers that `herd.py` measures.

usage: python bench/herd_board.py SOCKET
"""

import asyncio
import sys
from pathlib import Path

from forebay.app.board_server import BoardServer


async def serve(path: Path) -> None:
    await BoardServer(path).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
