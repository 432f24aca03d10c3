"""Translations over HTTP: what is asked together is translated together, and a page shows where a model looks."""
