//! What the tests that run inside a guest share.
