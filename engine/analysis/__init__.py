"""Looking into texts: diagnoses, attention maps, structure and drift."""
