"""Documents: `read_document` reads a file, `load_documents` puts documents into a prompt and into the memory."""

from treadle.knowledge.documents.extract import Document, Section, read_document
from treadle.knowledge.documents.library import Loaded, load_documents

__all__ = ["Document", "Loaded", "Section", "load_documents", "read_document"]
