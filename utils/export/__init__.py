"""Export of trained models to other formats, their import, and translation with what was exported."""

EXPORTED = "miyako.json"  # in a folder for CTranslate2: what translating needs besides weights and tokenizers
CARD = "README.md"  # of an exported folder, for people who have nothing else
PACKAGE = ".argosmodel"  # what the file name of a package of Argos Translate ends in
