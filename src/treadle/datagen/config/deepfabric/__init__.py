"""Configuration files of DeepFabric, read as configurations of Treadle."""
