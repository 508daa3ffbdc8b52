"""Documents: `read_document` reads a file, `load_documents` puts documents into a prompt and into the memory."""

from treadle.knowledge.documents.extract import DocumentSection, ReadDocument, read_document
from treadle.knowledge.documents.library import LoadedDocuments, load_documents

__all__ = ["DocumentSection", "LoadedDocuments", "ReadDocument", "load_documents", "read_document"]
