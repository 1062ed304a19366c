"""Paper 003, Prox-SGD and Proj-SGD: rates of the theorems, and sticking the landing."""
