"""Documents: `read_document` reads a file, `load_documents` puts documents into a prompt and into the memory."""

from treadle.knowledge.documents.library import (
    DocumentSection,
    LoadedDocuments,
    ReadDocument,
    load_documents,
    read_document,
)

__all__ = ["DocumentSection", "LoadedDocuments", "ReadDocument", "load_documents", "read_document"]
