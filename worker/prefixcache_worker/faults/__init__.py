"""Faults to be planted on purpose: each costs what the real one costs, and the doctor has to find it.

Only checkouts have them: this folder is left out of what is built for installation. Nothing else here knows
of them; they replace parts of an engine that is built already, or settings before it is built.
"""
