"""The sample store: every response of a run, once, on disk as soon as it is there.

    store.json                         what the store is: schema, configuration, run
    lock                               held by the one process that writes
    journal-000007.jsonl               responses as they come, one checked line each
    part-000007-0123456789abcdef.parquet   a journal that was closed; the name carries the file's SHA-256

What this catches: a process killed at any moment, a disk that fills up, files cut short or changed, a store
of another configuration, two writers. What it cannot catch: responses that the engine never reported.
"""
