"""Child processes: started, contained, read line by line, and ended with everything that they started."""
