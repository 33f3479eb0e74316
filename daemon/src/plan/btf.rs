//! BTF
