"""What an export makes: a SavedModel, its verification in another process, a version number."""
