"""Uploaded files, and vector stores: sets of files that are searched by words and by meaning.

Read first: `file_store` (files), `vector_stores` (which files belong to a store, and how they are read), then
`store_index` (the search) and `file_search` (the tool). Everything is kept in the journal's `ResourceTable`; the
indexes are made from it in memory.
"""
