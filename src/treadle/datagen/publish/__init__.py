"""The publication of datasets on the Hugging Face Hub and on Kaggle."""
