//! The rules of the repository that a machine can check.

mod arrows;
mod documents;
mod steps;
