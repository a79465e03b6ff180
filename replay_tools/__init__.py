"""Reads, folds, verifies and draws journals: of live or finished sessions, of any store. Changes nothing."""
