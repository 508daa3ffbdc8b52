"""The viewer: what the web page in `web/` shows, as answers of the API, live and in one file.

Read first: `bundle.py`, the page and how data gets into it; then `run_view.py` (runs), `data_pages.py` (datasets,
rollouts and topics as files), `viewed_data.py` (the same, live) and `token_views.py` (tokens and exports of runs).
The folds of what jobs have made stand beside the jobs, as in `datagen/dataset/dataset_view.py`. To show something
new, write its fold, give it an address in `data_pages.py` or a route in `server/routes/`, and a page in
`web/src/pages/`.
"""

from treadle.viewer.bundle import encode_bundle, write_bundle
from treadle.viewer.data_pages import make_page, write_page

__all__ = ["encode_bundle", "make_page", "write_bundle", "write_page"]
