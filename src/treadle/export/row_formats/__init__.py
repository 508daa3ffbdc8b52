"""The row formats, one file each. `treadle.export.exporter.FORMATS` has them by name."""
