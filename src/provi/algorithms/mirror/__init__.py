"""The one step, argmin <g, w> + h(w) + D(w, w_t)/step, over exponential families."""
