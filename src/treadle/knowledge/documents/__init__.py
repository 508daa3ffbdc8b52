"""Documents: `read_document` reads a file, `load_documents` puts documents into a prompt and into the memory."""

from treadle.knowledge.documents.library import DocumentSection as DocumentSection
from treadle.knowledge.documents.library import LoadedDocuments as LoadedDocuments
from treadle.knowledge.documents.library import ReadDocument as ReadDocument
from treadle.knowledge.documents.library import load_documents as load_documents
from treadle.knowledge.documents.library import read_document as read_document
