"""A process that fills a store and says what it was promised, until it is done or killed.

writer.py FOLDER COUNT        writes "INDEX\\n" to standard output after each add that returned
"""

from __future__ import annotations

import sys
from pathlib import Path

from store_samples import open_store, request, row

if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    with open_store(folder, seal_rows=5) as store:
        print("open", flush=True)
        for wanted in store.remaining("reference", [request(i) for i in range(count)]):
            store.add(row(int(wanted.key.split("/")[1])))
            print(wanted.key, flush=True)
    print("done", flush=True)
