"""Validates JSON documents against a JSON Schema with an independent implementation.

usage: validate_schema.py SCHEMA valid.json... -- invalid.json...
Exit code 0: all as expected; 1: not; 77: the jsonschema package is missing.
"""

import json
import sys

try:
    from jsonschema import Draft202012Validator
except ImportError:
    sys.exit(77)

schema_path, *paths = sys.argv[1:]
split = paths.index("--")
with open(schema_path) as file:
    schema = json.load(file)
Draft202012Validator.check_schema(schema)
validator = Draft202012Validator(schema)

wrong = 0
for index, path in enumerate(paths):
    if index == split:
        continue
    with open(path) as file:
        errors = [error.message for error in validator.iter_errors(json.load(file))]
    if bool(errors) != (index > split):
        print(f"{path}: {errors or 'is accepted'}")
        wrong = 1
sys.exit(wrong)
