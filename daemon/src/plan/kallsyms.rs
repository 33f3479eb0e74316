//! kallsyms
