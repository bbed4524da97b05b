//! Everything the shell promises, on a simulated machine and a clock that is moved by hand.

mod crashes;
mod discovery;
mod races;
mod rig;
mod walks;
