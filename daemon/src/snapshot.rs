//! All totals at one instant, and the difference of two.
