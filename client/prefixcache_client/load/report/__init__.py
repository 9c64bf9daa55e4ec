"""What is made of a measurement: a summary, and files and tables for people and programs."""
