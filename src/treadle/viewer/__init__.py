"""The viewer: one page, in one file, that shows a report.

The page works from disk and asks for nothing, and no text in it is ever read as HTML. Read first: `page.py` puts a
report into the page, and `page.html` draws it, with a function for each type of block. The types are in
`treadle.export.report_blocks`; to add one, add its class there and its function to `DRAW` in the page.
"""

from treadle.viewer.page import encode_page, write_page

__all__ = ["encode_page", "write_page"]
