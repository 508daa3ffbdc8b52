"""The names that the Hugging Face Hub and Kaggle have for licences."""

_HUB = """
apache-2.0 mit openrail bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0
cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0
cdla-permissive-1.0 cdla-permissive-2.0 ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl
gpl-2.0 gpl-3.0 lgpl lgpl-2.1 lgpl-3.0 isc ms-pl mpl-2.0 odc-by odbl osl-3.0 postgresql ofl-1.1 ncsa pddl
unlicense zlib
"""
"""Source: the Hub's documentation, list of licences, 2025."""
_KAGGLE = """
CC0-1.0 CC-BY-SA-3.0 CC-BY-SA-4.0 CC-BY-NC-SA-4.0 GPL-2.0 GPL-3.0 ODbL-1.0 DbCL-1.0 CC-BY-4.0 CC-BY-NC-4.0 PDDL
CC-BY-3.0 CC-BY-3.0-IGO US-Government-Works CC-BY-NC-SA-3.0-IGO CDLA-Permissive-1.0 CDLA-Sharing-1.0 CC-BY-ND-4.0
CC-BY-NC-ND-4.0 ODC-BY-1.0 LGPL-3.0 AGPL-3.0 FDL-1.3 EU-ODP-Legal-Notice apache-2.0 copyright-authors
"""
"""Source: the documentation of Kaggle's API, metadata of datasets, 2025."""
_ALIASES = {"odc-by-1.0": "odc-by", "odbl-1.0": "odbl", "pddl-1.0": "pddl", "gfdl-1.3": "gfdl"}
OTHER = "other"
"""The name that both services have for a licence that is not in their lists. The description then has its name."""


def hub_license(name: str) -> str:
    """Return the Hub's name for a licence, which is `other` if it is not in its list."""
    return _find(name, _HUB)


def kaggle_license(name: str) -> str:
    """Return Kaggle's name for a licence, which is `other` if it is not in its list."""
    return _find(name, _KAGGLE)


def _find(name: str, names: str) -> str:
    known = {item.lower(): item for item in names.split()}
    plain = name.strip().lower().removesuffix("-only").removesuffix("-or-later")
    return known.get(plain) or known.get(_ALIASES.get(plain, "")) or OTHER
